-- What the records of a row may still give back. Go twin: giveback.go.
--
-- A row with records is written with a 0 before it, "0used ts version". A
-- program that knows no lists reads it as a plain row and writes it as one: the
-- list is void then. The hash of a row's records has the list in the field '':
-- "mark next till zero" and of each entry " number low". till is the instant at
-- which its last record ends; zero is the number of the last record that waits
-- with a slack of 0, or 0 where that is not known. In the field of its
-- reservation it has a record, in the units of the row's version: "number mark
-- slack units due ends", where a slack of -1 waits for nothing and -2 is of a
-- record that was cancelled, with what was withheld of it.
local min, max = math.min, math.max

local function newList(reservation) -- the mark is the last 48 bits of the id
  return {mark = tonumber(string.sub(reservation, -12), 16), next = 1, till = 0, zero = 0, numbers = {}, lows = {}}
end

local function readList(key)
  local text = redis.call('HGET', key, '')
  if not text then
    return nil
  end
  local numbers, lows, list = {}, {}, {}
  for word in string.gmatch(text, '%d+') do
    list[#list + 1] = tonumber(word)
  end
  for i = 5, #list, 2 do
    numbers[#numbers + 1], lows[#lows + 1] = list[i], list[i + 1]
  end
  return {mark = list[1], next = list[2], till = list[3], zero = list[4], numbers = numbers, lows = lows}
end

local function listText(l)
  local words = {string.format('%.0f %.0f %.0f %.0f', l.mark, l.next, l.till, l.zero)}
  for i = 1, #l.numbers do
    words[i + 1] = string.format('%.0f %.0f', l.numbers[i], l.lows[i])
  end
  return table.concat(words, ' ')
end

local function readRecord(text)
  local number, mark, slack, units, due, ends = string.match(text, '^(%d+) (%d+) (-?%d+) (%d+) (%d+) (%d+)$')
  return {number = tonumber(number), mark = tonumber(mark), slack = tonumber(slack), units = tonumber(units), due = tonumber(due), ends = tonumber(ends)}
end

local function recordText(r)
  return string.format('%.0f %.0f %.0f %.0f %.0f %.0f', r.number, r.mark, r.slack, r.units, r.due, r.ends)
end

-- rise joins neighbours of which one is not below the next.
local function rise(l)
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

-- touch lowers the last low to what is used now.
local function touch(l, used)
  if {{lowers "used" "l.lows[#l.lows]"}} then
    l.lows[#l.lows] = used
    rise(l)
  end
end

-- limit lowers the low that covers a record, if there is one.
local function limit(l, number, used)
  local i = covers(l, number)
  if i and {{lowers "used" "l.lows[i]"}} then
    l.lows[i] = used
    rise(l)
  end
end

-- lower takes units off every low from the one that covers a record to the
-- last, or as many as there are, and returns what came out at the end.
local function lower(l, number, units)
  local from = covers(l, number)
  if not from then
    return 0
  end
  for i = from, #l.lows do
    {{statements 4 "lesser" "units" "l.lows[i]" "units"}}
    l.lows[i] = {{without "l.lows[i]" "units"}}
  end
  rise(l)
  return units
end

-- append adds an entry; of too many the two neighbours whose lows lie
-- closest become one.
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

-- settle prepares a list for a write: what waited and has fallen due lowers the
-- lows before it for good, and records that have ended go. In the set of the
-- row's reservations stands when each ends, and, with a ~ before it, when the
-- part of this row falls due where that is earlier.
local function settle(l, set, key)
  local members = redis.call('ZRANGEBYSCORE', set, '-inf', string.format('%.0f', now))
  if #members == 0 then
    return
  end
  local ended, due = {}, {} -- by id, whether the whole reservation has ended
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
    limit(l, r.number - 1, r.slack)
    if r.number == l.zero then
      l.zero = 0
    end
  end
  redis.call('ZREMRANGEBYSCORE', set, '-inf', string.format('%.0f', now))
end
