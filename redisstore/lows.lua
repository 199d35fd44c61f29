-- What the records of a row may still give back. Go twin: giveback.go.
--
-- A row is "used ts version". If it has records that may give something back, "due till"
-- follow: before due no record ends, so that the row can be decided without them, and it
-- is 0 while there are reservations; till is when the record of the last hold ends. Then
-- come the lows, but not for a concurrency limit: "mark next", and "number used" of each entry. A
-- script that takes lowers the last entry only; who reads them joins those that do not
-- rise any more.
--
-- The hash of a row's records has a field for each: the id of its reservation, or a colon
-- and the id of its hold, with "number mark slack units due ends unit expires". A slack
-- of -1 means that it does not wait, and -2 that it was cancelled; its units are then
-- those withheld.
local min, max = math.min, math.max

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

-- readRow decodes a row. It returns nil if the row is locked or not a row.
local function readRow(text)
  local used, ts, version = string.match(text, '^(%d+) (%d+) (%d+)$')
  if used then
    return {used = used + 0, ts = ts + 0, version = version + 0}
  end
  if not string.find(text, '^%d+ %d+ %d+[ %d]*$') then
    return nil
  end
  local list = cjson.decode('[' .. string.gsub(text, ' ', ',') .. ']') -- the fastest way to read many numbers
  local r, n = {used = list[1], ts = list[2], version = list[3], due = list[4], till = list[5]}, 0
  if list[6] then
    r.mark, r.next, r.numbers, r.lows = list[6], list[7], {}, {}
    for i = 8, #list, 2 do
      n = n + 1
      r.numbers[n], r.lows[n] = list[i], list[i + 1]
    end
    if n > 1 and r.lows[n - 1] >= r.lows[n] then
      joinRising(r)
    end
  end
  return r
end

-- rowText encodes a row that uses units at a time.
local function rowText(r, units, t)
  local list = {units, t, r.version, r.due, r.till}
  if r.lows then
    list[6], list[7] = r.mark, r.next
    for i = 1, #r.lows do
      list[2 * i + 6], list[2 * i + 7] = r.numbers[i], r.lows[i]
    end
  end
  return string.format('%d' .. string.rep(' %d', #list - 1), unpack(list))
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

-- prolong makes a key live until a time at least: the hash of a row's records, which may be
-- new. PTTL may be up to a second too early, because the server may stop between TIME and
-- PTTL: too early a time would shorten the key's life.
local function prolong(key, till, new)
  local stays = new and 0 or real + 1000 * (redis.call('PTTL', key) - shift) + 1000000
  if till >= stays - 1001000 then
    redis.call('PEXPIREAT', key, string.format('%.0f', math.ceil(max(till, stays) / 1000) + shift))
  end
end
