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
local n, reservation = tonumber(ARGV[1]), ARGV[2]
for i = 1, n do
  local due = redis.call('ZSCORE', KEYS[n + i], reservation)
  if not due or tonumber(due) <= now then
    return {1}
  end
end

-- records lists those of a row's list, in the order of their numbers.
local function records(key, l)
  local flat, list = redis.call('HGETALL', key), {}
  for i = 1, #flat, 2 do
    if flat[i] ~= '' then
      local r = readRecord(flat[i + 1])
      if r.mark == l.mark then
        r.id, list[#list + 1] = flat[i], r
      end
    end
  end
  table.sort(list, function(a, b)
    return a.number < b.number
  end)
  return list
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
      local to = math.max(now, t)
      left = math.max(0, left - (math.floor((to - origin) / every) - math.floor((t - origin) / every)) * add)
      t = to
    elseif now >= origin and now < ends then
      ready = ready and t >= origin -- Go knows the calendar
      t = math.max(now, t)
    else
      ready = false
    end
    local l = has == '0' and ready and readList(KEYS[2 * n + i])
    if l then
      local list = records(KEYS[2 * n + i], l)
      local at
      for j, r in ipairs(list) do
        if r.id == reservation and not r.rest and l.till > now then
          at = j
        end
      end
      rows[i] = at and {left = left, t = t, version = version, list = l, records = list, at = at}
    end
  end
  local at = 4 * i - 1
  found[at], found[at + 1], found[at + 2], found[at + 3] = tonumber(used) or 0, tonumber(ts) or 0, tonumber(version) or -1, has == '0' and 1 or 0
end
if not ready then
  return found
end

-- give takes off r what may come back of it, at most free units, and returns how
-- many of them are still there.
local function give(l, r, free)
  local units = math.min(r.units, free)
  if units > 0 then
    r.units, r.changed = r.units - units, true
  end
  return lower(l, r.number, units)
end

-- giveBack cancels record at of a list and then tries what was withheld of
-- others again, newest first. It returns the units that come back.
local function giveBack(l, list, at)
  local most = 9007199254740991
  local free, given = most, 0
  for i = at + 1, #list do
    if list[i].slack >= 0 then
      free = math.min(free, list[i].slack)
    end
  end
  given = give(l, list[at], free)
  for i = at + 1, given > 0 and #list or 0 do
    if list[i].slack >= 0 then
      list[i].slack, list[i].changed = list[i].slack - given, true
    end
  end
  local units = 0
  free = most -- the least slack of those that wait and were made after record i
  for i = #list, 1, -1 do
    local r = list[i]
    if r.slack >= 0 then
      free, r.slack = math.min(free, r.slack), r.slack + units
    elseif i ~= at and r.rest then
      local out = give(l, r, free)
      units, free = units + out, free - out
    end
  end
  for i = 1, units > 0 and #list or 0 do
    local r = list[i]
    if r.slack >= 0 then
      r.slack, r.changed = r.slack - units, true
    end
  end
  return given + units
end

-- retire drops rests that nothing can free any more, and says until when the
-- list lives: until then some record may be cancelled.
local function retire(list, key)
  local waits, till = 0, 0
  for _, r in ipairs(list) do
    if not r.rest and not r.gone then
      till = math.max(till, r.ends)
      if r.slack >= 0 then
        waits = math.max(waits, r.number)
      end
    end
  end
  for _, r in ipairs(list) do
    if r.rest and (r.units == 0 or r.number >= waits) then
      redis.call('HDEL', key, r.id)
    elseif r.changed and not r.gone then
      redis.call('HSET', key, r.id, recordText(r))
    end
  end
  return till
end

-- rewrite stores a row, and its list where records of it live.
local function rewrite(row, key, held, till)
  local before = ''
  if till > now and row.left > 0 then
    row.list.till, before = till, '0'
    redis.call('HSET', held, '', listText(row.list))
  else
    redis.call('DEL', held)
  end
  if row.left > 0 then
    redis.call('SET', key, string.format('%s%.0f %.0f %s', before, row.left, row.t, row.version), 'KEEPTTL')
  else
    redis.call('DEL', key)
  end
end

for i = 1, n do
  local row, set, held = rows[i], KEYS[n + i], KEYS[2 * n + i]
  redis.call('ZREM', set, reservation) -- first: it needs no memory, and what is written after it is not refused for want of it
  if row then
    local list, at = row.records, row.at
    local settled = settle(row.list, set, held)
    redis.call('ZREM', set, '~' .. reservation)
    for _, r in ipairs(list) do
      if settled[r.id] ~= nil then
        r.slack, r.gone = -1, settled[r.id]
      end
    end
    touch(row.list, row.left)
    list[at].rest, list[at].slack, list[at].changed = true, -1, true
    row.left = row.left - giveBack(row.list, list, at)
    rewrite(row, KEYS[i], held, retire(list, held))
  end
end
if #KEYS > 3 * n then
  redis.call('DEL', KEYS[3 * n + 1])
end
return {0}
