-- What the records of a row may still give back. Go twin: giveback.go.
--
-- A row with records is written with a 0 before it, "0used ts version". The hash of a
-- row's records has the list in the field '': "mark next till due", then " number low"
-- for each entry. till is the time at which its last reservation ends. due is the time at
-- which its first hold expires, or an earlier one: from then on Go decides. A record is in
-- the field of its reservation, in units of the row's version: "number mark slack units
-- due ends". A slack of -1 means that it does not wait, and -2 that it was cancelled; its
-- units are then those withheld.
local min, max = math.min, math.max

local function readList(key)
  local text = redis.call('HGET', key, '')
  if not text then
    return nil
  end
  local list = cjson.decode('[' .. string.gsub(text, ' ', ',') .. ']') -- the fastest way to read many numbers
  local numbers, lows, n = {}, {}, 0
  for i = 5, #list, 2 do
    n = n + 1
    numbers[n], lows[n] = list[i], list[i + 1]
  end
  return {mark = list[1], next = list[2], till = list[3], due = list[4], numbers = numbers, lows = lows}, text
end

local function listText(l)
  local list, n = {l.mark, l.next, l.till, l.due}, #l.numbers
  for i = 1, n do
    list[2 * i + 3], list[2 * i + 4] = l.numbers[i], l.lows[i]
  end
  return string.format('%d %d %d %d' .. string.rep(' %d %d', n), unpack(list))
end

-- joinRising joins neighbours of which the first is not below the second.
local function joinRising(l)
  local numbers, lows, n = {}, {}, 0
  for i = 1, #l.numbers do
    local number = l.numbers[i]
    while n > 0 and lows[n] >= l.lows[i] do
      number, numbers[n], lows[n] = numbers[n], nil, nil
      n = n - 1
    end
    n = n + 1
    numbers[n], lows[n] = number, l.lows[i]
  end
  l.numbers, l.lows = numbers, lows
end

local function covers(l, number)
  for i = #l.numbers, 1, -1 do
    if l.numbers[i] <= number then
      return i
    end
  end
end

-- lowerLast lowers the last low to what is used now.
local function lowerLast(l, used)
  if used < l.lows[#l.lows] then
    l.lows[#l.lows] = used
    joinRising(l)
  end
end

-- takeUnits subtracts units from every low, beginning with the one that covers a record.
-- A low that has fewer passes on only what it has. It returns what is left of units after
-- the last low.
local function takeUnits(l, number, units)
  local from = covers(l, number)
  if not from then
    return 0
  end
  for i = from, #l.lows do
    if units > l.lows[i] then
      units = l.lows[i]
    end
    l.lows[i] = l.lows[i] - units
  end
  joinRising(l)
  return units
end

-- append adds an entry. If there are too many, the two neighbours with the closest
-- lows are joined.
local function append(l, used)
  local n = #l.lows + 1
  l.numbers[n], l.lows[n], l.next = l.next, used, l.next + 1
  if n <= 32 then
    return
  end
  local at = 2
  for i = 3, n - 1 do
    if l.lows[i] - l.lows[i - 1] < l.lows[at] - l.lows[at - 1] then
      at = i
    end
  end
  table.remove(l.numbers, at)
  table.remove(l.lows, at)
end

-- livesUntil returns a time until which a key lives at most, or one that has passed if it
-- never expires. It is up to pause too late, because the server may stop between TIME and
-- PTTL: too early a time would shorten the key's life.
local pause = 1000000
local function livesUntil(key)
  return real + 1000 * (redis.call('PTTL', key) - shift) + pause
end

-- prolong makes a key live until a time at least: the hash of a row's records. stays is
-- what livesUntil returned.
local function prolong(key, till, stays)
  if till >= stays - pause - 1000 then
    redis.call('PEXPIREAT', key, string.format('%.0f', math.ceil(max(till, stays) / 1000) + shift))
  end
end
