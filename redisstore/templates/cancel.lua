-- Gives back what is left of a reservation and deletes it, in one step. Go twin:
-- Definition.GiveBack.
--
-- KEYS: n rows, the n sets of their reservations, the n hashes of their records;
-- without a cluster, the key of the reservation. ARGV: n, reservation; for each row
-- the current version of its limit and its rule: every, add, origin; with a
-- calendar (every is 0) start and end of the current window. Returns 0: done. 1:
-- unknown, used up, due or reset. 2: Go must decide, because a row has another
-- version or window, or begins with 00, and nothing was done.
local floor = math.floor
local n, reservation = tonumber(ARGV[1]), ARGV[2]
for i = 1, n do
  local due = redis.call('ZSCORE', KEYS[n + i], reservation)
  if not due or {{dueBy "tonumber(due)" "now"}} then
    return {1}
  end
end

local rows, ready = {}, true
for i = 1, n do
  local text = redis.call('GET', KEYS[i])
  local has, used, ts, version = '', 0, 0, 0
  if text then
    has, used, ts, version = string.match(text, '^(0?)(%d+) (-?%d+) (%d+)$')
    local a = 3 + (i - 1) * 5
    local every, add, origin, ends = tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4])
    local left, t = tonumber(used) or 0, tonumber(ts) or 0
    ready = ready and version == ARGV[a] and string.sub(text, 1, 2) ~= '00'
    if every > 0 then -- step the row, as every write does
      local to = {{later "now" "t"}}
      local ticks
      {{statements 6 "ticksUpTo" "t" "to" "origin" "every" "ticks"}}
      {{statements 6 "leftAfter" "left" "ticks" "add" unbounded "left"}}
      t = to
    elseif {{dueBy "origin" "now"}} and {{no (dueBy "ends" "now")}} then
      ready = ready and {{dueBy "origin" "t"}} -- only Go knows the calendar
      t = {{later "now" "t"}}
    else
      ready = false
    end
    local l = has == '0' and ready and readList(KEYS[2 * n + i])
    local record = l and {{no (dueBy "l.till" "now")}} and redis.call('HGET', KEYS[2 * n + i], reservation)
    local r = record and readRecord(record)
    if r and r.mark == l.mark then
      r.id = reservation
      rows[i] = {left = left, t = t, version = version, list = l, record = r}
    end
  end
end
if not ready then
  return {2}
end

-- otherRecords returns the records that wait, except r, and those with withheld
-- units.
local function otherRecords(key, l, r)
  local flat, mark, waits, rests = redis.call('HGETALL', key), string.format('%.0f', l.mark), {}, {}
  for i = 1, #flat, 2 do
    local number, of, slack = string.match(flat[i + 1], '^(%d+) (%d+) (-?%d+) %d+ %d+ %d+$')
    if of == mark and slack ~= '-1' and flat[i] ~= r.id then
      if slack == '-2' then
        local rest = readRecord(flat[i + 1])
        rest.id, rest.was, rests[#rests + 1] = flat[i], rest.units, rest
      else
        slack = tonumber(slack)
        waits[#waits + 1] = {id = flat[i], number = tonumber(number), slack = slack, was = slack, text = flat[i + 1]}
      end
    end
  end
  return waits, rests
end

local function newerFirst(a, b)
  return a.number > b.number
end

-- leastSlack returns the least slack of the waiting records that were made after a
-- record.
local function leastSlack(waits, number)
  local free = 9007199254740991
  for _, w in ipairs(waits) do
    if w.number > number then
      {{statements 6 "lesser" "free" "w.slack" "free"}}
    end
  end
  return free
end

-- giveUnits subtracts from r what can be given back of it, at most free units, and
-- returns how many of these are really given back.
local function giveUnits(l, r, free)
  local units = {{lesser "r.units" "free"}}
  r.units = {{without "r.units" "units"}}
  return takeUnits(l, r.number, units)
end

-- giveRests tries again to give back withheld units, newest first, and returns how
-- many come back. Usually it is none, which the newest record already shows.
local function giveRests(l, waits, rests)
  table.sort(rests, newerFirst)
  if #rests == 0 or {{isNone "leastSlack(waits, rests[1].number)"}} then
    return 0
  end
  table.sort(waits, newerFirst)
  local units, free, j = 0, 9007199254740991, 1
  for _, r in ipairs(rests) do
    while waits[j] and waits[j].number > r.number do
      local w = waits[j]
      free, w.slack, j = {{lesser "free" "w.slack"}}, {{added "w.slack" "units"}}, j + 1 -- without what newer records gave back
    end
    local out = giveUnits(l, r, free)
    units, free = {{added "units" "out"}}, {{without "free" "out"}}
  end
  for i = 1, j - 1 do
    waits[i].slack = {{without "waits[i].slack" "units"}}
  end
  return units
end

-- store writes what has changed. A rest is deleted if nothing of it can be given back any
-- more: no waiting record was made after it, or newer rests have all units that are left.
-- Newer rests are given back first, and older ones only after them. So all rests together
-- have no more units than are used, except for the oldest rest of each low.
local function store(key, l, waits, rests)
  local last, low, newer = 0, nil, 0
  for _, w in ipairs(waits) do
    last = math.max(last, w.number)
    if w.slack ~= w.was then
      redis.call('HSET', key, w.id, (string.gsub(w.text, '^(%d+ %d+) %d+', string.format('%%1 %.0f', w.slack))))
    end
  end
  table.sort(rests, newerFirst)
  for _, r in ipairs(rests) do
    local i = covers(l, r.number)
    if i ~= low then
      low, newer = i, 0
    end
    if {{restGoes "r.units" "r.number" "last"}} or not i or newer >= l.lows[i] then
      redis.call('HDEL', key, r.id)
    else
      newer = {{added "newer" "r.units"}}
      if r.units ~= r.was then
        redis.call('HSET', key, r.id, recordText(r))
      end
    end
  end
end

-- giveBack cancels a record, and tries again to give back the withheld units of others.
-- It returns the units that come back. If a later record waits with a slack of 0, none
-- come back, and the others need not be read. They are then read with a probability of
-- 8/n, where n is their number, chosen by the random id, in order to delete rests of
-- which nothing can come back any more. Otherwise the number of rests would grow as long
-- as calls always wait.
local function giveBack(l, r, key)
  r.slack = -2
  if r.number < l.zero then
    redis.call('HSET', key, r.id, recordText(r))
    if tonumber(string.sub(r.id, -8), 16) % redis.call('HLEN', key) < 8 then
      store(key, l, otherRecords(key, l, {}))
    end
    return 0
  end
  local waits, rests = otherRecords(key, l, r)
  local given = giveUnits(l, r, leastSlack(waits, r.number))
  for _, w in ipairs(waits) do
    if w.number > r.number then
      w.slack = {{without "w.slack" "given"}}
    end
  end
  given, l.zero = {{added "given" "giveRests(l, waits, rests)"}}, 0
  for _, w in ipairs(waits) do
    if {{isNone "w.slack"}} then
      l.zero = math.max(l.zero, w.number)
    end
  end
  rests[#rests + 1] = r
  store(key, l, waits, rests)
  return given
end

-- lastEnd returns the time at which the last record of a list ends. Until then records of
-- the list may be cancelled. The set also has records of earlier lists.
local function lastEnd(l, r, set, key)
  if {{no (dueBy "l.till" "r.ends")}} then
    return l.till
  end
  local at = 0
  while true do
    local member = redis.call('ZREVRANGE', set, at, at, 'WITHSCORES')
    local text = member[1] and redis.call('HGET', key, member[1])
    if not member[1] then
      return 0
    elseif text and readRecord(text).mark == l.mark then
      return tonumber(member[2])
    end
    at = at + 1
  end
end

-- rewrite stores a row, and its list if it has live records.
local function rewrite(row, key, records)
  local before = ''
  if {{no (dueBy "row.list.till" "now")}} and {{no (isNone "row.left")}} then
    before = '0'
    redis.call('HSET', records, '', listText(row.list))
  else
    redis.call('DEL', records)
  end
  if {{no (isNone "row.left")}} then
    redis.call('SET', key, string.format('%s%.0f %.0f %s', before, row.left, row.t, row.version), 'KEEPTTL')
  else
    redis.call('DEL', key)
  end
end

for i = 1, n do
  local row, set, records = rows[i], KEYS[n + i], KEYS[2 * n + i]
  redis.call('ZREM', set, reservation) -- first, because it needs no memory; the writes after a first one are not refused for lack of memory
  if row then
    local l = row.list
    resolveDue(l, set, records)
    redis.call('ZREM', set, '~' .. reservation)
    lowerLast(l, row.left)
    l.till = lastEnd(l, row.record, set, records)
    row.left = {{without "row.left" "giveBack(l, row.record, records)"}}
    rewrite(row, KEYS[i], records)
  end
end
if #KEYS > 3 * n then
  redis.call('DEL', KEYS[3 * n + 1])
end
return {0}
