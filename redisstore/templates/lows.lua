-- What the records of a row may still give back. Go twin: giveback.go.
--
-- A row with records is written with a 0 before it, "0used ts version". A program
-- that knows no lists reads and writes it as a plain row, which makes the list
-- void. The hash of a row's records has the list in the field '': "mark next till
-- zero", then " number low" for each entry. till is the time at which its last
-- record ends. zero is the number of the last waiting record with a slack of 0, or
-- 0 if not known. A record is in the field of its reservation, in units of the
-- row's version: "number mark slack units due ends". A slack of -1 means that it
-- does not wait, and -2 that it was cancelled; its units are then those withheld.
local min, max = math.min, math.max

-- newList returns the list of a row whose first record is made now. The mark is made
-- of the last 48 bits of its id and of the time, because a request may arrive twice.
local function newList(reservation, now)
  return {mark = (tonumber(string.sub(reservation, -12), 16) + now) % 2 ^ 48, next = 1, till = 0, zero = 0, numbers = {}, lows = {}}
end

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
  return {mark = list[1], next = list[2], till = list[3], zero = list[4], numbers = numbers, lows = lows}, text
end

local function listText(l)
  local list, n = {l.mark, l.next, l.till, l.zero}, #l.numbers
  for i = 1, n do
    list[2 * i + 3], list[2 * i + 4] = l.numbers[i], l.lows[i]
  end
  return string.format('%d %d %d %d' .. string.rep(' %d %d', n), unpack(list))
end

local function readRecord(text)
  local number, mark, slack, units, due, ends = string.match(text, '^(%d+) (%d+) (-?%d+) (%d+) (%d+) (%d+)$')
  return {number = tonumber(number), mark = tonumber(mark), slack = tonumber(slack), units = tonumber(units), due = tonumber(due), ends = tonumber(ends)}
end

local function recordText(r)
  return string.format('%.0f %.0f %.0f %.0f %.0f %.0f', r.number, r.mark, r.slack, r.units, r.due, r.ends)
end

-- joinRising joins neighbours of which the first is not below the second.
local function joinRising(l)
  local numbers, lows, n = {}, {}, 0
  for i = 1, #l.numbers do
    local number = l.numbers[i]
    while n > 0 and {{joins "lows[n]" "l.lows[i]"}} do
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
    if {{covers "l.numbers[i]" "number"}} then
      return i
    end
  end
end

-- lowerLast lowers the last low to what is used now.
local function lowerLast(l, used)
  if {{lowers "used" "l.lows[#l.lows]"}} then
    l.lows[#l.lows] = used
    joinRising(l)
  end
end

-- lowerCovering lowers the low that covers a record, if there is one.
local function lowerCovering(l, number, used)
  local i = covers(l, number)
  if i and {{lowers "used" "l.lows[i]"}} then
    l.lows[i] = used
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
    {{statements 4 "lesser" "units" "l.lows[i]" "units"}}
    l.lows[i] = {{without "l.lows[i]" "units"}}
  end
  joinRising(l)
  return units
end

-- append adds an entry. If there are too many, the two neighbours with the closest
-- lows are joined.
local function append(l, used)
  local n = #l.lows + 1
  l.numbers[n], l.lows[n], l.next = l.next, used, l.next + 1
  if {{no (tooMany "n")}} then
    return
  end
  local at = 2
  for i = 3, n - 1 do
    if {{closer "l.lows[i]" "l.lows[i - 1]" "l.lows[at]" "l.lows[at - 1]"}} then
      at = i
    end
  end
  table.remove(l.numbers, at)
  table.remove(l.lows, at)
end

-- resolveDue prepares a list for a write: records that waited and have fallen due
-- lower the lows before them, and records that have ended are deleted. The set of
-- the row's reservations has the end of each and, with a ~ before the id, the time
-- at which the part of this row falls due if that is earlier.
local function resolveDue(l, set, key)
  local members = redis.call('ZRANGEBYSCORE', set, '-inf', string.format('%.0f', now))
  if #members == 0 then
    return
  end
  local ended, due = {}, {} -- by id: whether the whole reservation has ended
  for _, member in ipairs(members) do
    local id = string.gsub(member, '^~', '')
    ended[id] = ended[id] or id == member
  end
  for id, over in pairs(ended) do
    local text = redis.call('HGET', key, id)
    local r = text and readRecord(text)
    if r and r.mark == l.mark and r.slack >= 0 then
      due[#due + 1] = {number = r.number, slack = r.slack, due = r.due}
    end
    if r and not over then
      r.slack = -1
      redis.call('HSET', key, id, recordText(r))
    elseif r then
      redis.call('HDEL', key, id)
    end
  end
  table.sort(due, function(a, b)
    return a.due < b.due or a.due == b.due and a.number < b.number
  end)
  for _, r in ipairs(due) do
    lowerCovering(l, r.number - 1, r.slack)
    if r.number == l.zero then
      l.zero = 0
    end
  end
  redis.call('ZREMRANGEBYSCORE', set, '-inf', string.format('%.0f', now))
end
