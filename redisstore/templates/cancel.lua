-- Gives back what of a reservation is still there and forgets it, in one step.
-- Go twin: Definition.GiveBack.
--
-- KEYS: n rows, the n sets of their reservations, the n hashes of their records;
-- where it is kept here, the reservation's own key. ARGV: n, reservation; for
-- each row the present version of its limit, and its rule: every, add, origin,
-- and of a calendar, whose every is 0, the present window's start and end.
-- Returns 0: done. 1: unknown, spent, due or reset. 2, now, and of each row used,
-- ts and version, and whether it has a list: one of them is of another version
-- or window, and nothing was done.
local floor = math.floor
local n, reservation = tonumber(ARGV[1]), ARGV[2]
for i = 1, n do
  local due = redis.call('ZSCORE', KEYS[n + i], reservation)
  if not due or {{dueBy "tonumber(due)" "now"}} then
    return {1}
  end
end

local found, rows, ready = {2, now}, {}, true
for i = 1, n do
  local text = redis.call('GET', KEYS[i])
  local has, used, ts, version = '', 0, 0, 0
  if text then
    has, used, ts, version = string.match(text, '^(0?)(%d+) (-?%d+) (%d+)$')
    local a = 3 + (i - 1) * 5
    local every, add, origin, ends = tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4])
    local left, t = tonumber(used) or 0, tonumber(ts) or 0
    ready = ready and version == ARGV[a]
    if every > 0 then -- step the row, as every write does
      local to = {{later "now" "t"}}
      local ticks
      {{statements 6 "ticksUpTo" "t" "to" "origin" "every" "ticks"}}
      {{statements 6 "leftAfter" "left" "ticks" "add" unbounded "left"}}
      t = to
    elseif {{dueBy "origin" "now"}} and {{no (dueBy "ends" "now")}} then
      ready = ready and {{dueBy "origin" "t"}} -- Go knows the calendar
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
  local at = 4 * i - 1
  found[at], found[at + 1], found[at + 2], found[at + 3] = tonumber(used) or 0, tonumber(ts) or 0, tonumber(version) or -1, has == '0' and 1 or 0
end
if not ready then
  return found
end

-- others lists the records that wait, but r, and those of which something is withheld.
local function others(key, l, r)
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

-- least is the least slack of those that wait and were made after a record.
local function least(waits, number)
  local free = 9007199254740991
  for _, w in ipairs(waits) do
    if w.number > number then
      {{statements 6 "lesser" "free" "w.slack" "free"}}
    end
  end
  return free
end

-- give takes off r what may come back of it, at most free units, and returns how
-- many of them are still there.
local function give(l, r, free)
  local units = {{lesser "r.units" "free"}}
  r.units = {{without "r.units" "units"}}
  return lower(l, r.number, units)
end

-- giveRests tries what was withheld again, newest first, and returns what comes
-- back of it: most often nothing, as seen from the newest.
local function giveRests(l, waits, rests)
  table.sort(rests, newerFirst)
  if #rests == 0 or {{isNone "least(waits, rests[1].number)"}} then
    return 0
  end
  table.sort(waits, newerFirst)
  local units, free, j = 0, 9007199254740991, 1
  for _, r in ipairs(rests) do
    while waits[j] and waits[j].number > r.number do
      local w = waits[j]
      free, w.slack, j = {{lesser "free" "w.slack"}}, {{added "w.slack" "units"}}, j + 1 -- what newer records gave back does not concern it
    end
    local out = give(l, r, free)
    units, free = {{added "units" "out"}}, {{without "free" "out"}}
  end
  for i = 1, j - 1 do
    waits[i].slack = {{without "waits[i].slack" "units"}}
  end
  return units
end

-- store writes what has changed. A rest of which nothing can come back goes: no
-- record that waits was made after it, or newer rests hold all that is left of
-- what it took. Those are tried first, and where they are held back, so is it.
-- So rests hold no more units than are used, but for the oldest of each low.
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

-- giveBack cancels a record and tries what was withheld of others again. It
-- returns the units that come back. Where a later record waits with a slack of
-- 0, none do, and the others need not be read. They are, with a chance of 8 in
-- their number, to let rests go of which nothing can come back any more: where
-- somebody always waits there would be ever more of them. An id is random.
local function giveBack(l, r, key)
  r.slack = -2
  if r.number < l.zero then
    redis.call('HSET', key, r.id, recordText(r))
    if tonumber(string.sub(r.id, -8), 16) % redis.call('HLEN', key) < 8 then
      store(key, l, others(key, l, {}))
    end
    return 0
  end
  local waits, rests = others(key, l, r)
  local given = give(l, r, least(waits, r.number))
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

-- lives is the instant at which the last record of a list ends: until then one
-- may be cancelled. In the set are also those of a list before.
local function lives(l, r, set, key)
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

-- rewrite stores a row, and its list where records of it live.
local function rewrite(row, key, held)
  local before = ''
  if {{no (dueBy "row.list.till" "now")}} and {{no (isNone "row.left")}} then
    before = '0'
    redis.call('HSET', held, '', listText(row.list))
  else
    redis.call('DEL', held)
  end
  if {{no (isNone "row.left")}} then
    redis.call('SET', key, string.format('%s%.0f %.0f %s', before, row.left, row.t, row.version), 'KEEPTTL')
  else
    redis.call('DEL', key)
  end
end

for i = 1, n do
  local row, set, held = rows[i], KEYS[n + i], KEYS[2 * n + i]
  redis.call('ZREM', set, reservation) -- first: it needs no memory, and what is written after it is not refused for want of it
  if row then
    local l = row.list
    settle(l, set, held)
    redis.call('ZREM', set, '~' .. reservation)
    touch(l, row.left)
    l.till = lives(l, row.record, set, held)
    row.left = {{without "row.left" "giveBack(l, row.record, held)"}}
    rewrite(row, KEYS[i], held)
  end
end
if #KEYS > 3 * n then
  redis.call('DEL', KEYS[3 * n + 1])
end
return {0}
