-- Gives a reservation's tokens back and forgets it, in one step.
--
-- KEYS: n rows, the n sets of their reservations; where it is kept here, the
-- reservation's own key. ARGV: n, reservation; for each row the units to give
-- back, the present version of its limit, and its rule: every, add, origin, and
-- of a calendar, whose every is 0, the present window's start and end.
-- Returns 0: done. 1: unknown, spent, due or reset. 2, now, and each row's used,
-- ts and version: one of them is of another version or window, and nothing was done.
local n, reservation = tonumber(ARGV[1]), ARGV[2]
for i = 1, n do
  local due = redis.call('ZSCORE', KEYS[n + i], reservation)
  if not due or tonumber(due) <= now then
    return {1}
  end
end
local found, rows, ready = {2, now}, {}, true
for i = 1, n do
  local row = redis.call('GET', KEYS[i])
  local used, ts, version = 0, 0, 0
  if row then
    used, ts, version = string.match(row, '^(%d+) (-?%d+) (%d+)$')
    local a = 3 + (i - 1) * 6
    local every, add, origin, ends = tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4]), tonumber(ARGV[a + 5])
    local left, t = tonumber(used) or 0, tonumber(ts) or 0
    ready = ready and version == ARGV[a + 1]
    if every > 0 then -- step the row, as every write does
      local to = math.max(now, t)
      left = math.max(0, left - (math.floor((to - origin) / every) - math.floor((t - origin) / every)) * add)
      t = to
    elseif now >= origin and now < ends then
      ready = ready and t >= origin -- Go knows the calendar
      t = math.max(now, t)
    end
    rows[i] = {left, t, version}
  end
  found[3 * i], found[3 * i + 1], found[3 * i + 2] = tonumber(used) or 0, tonumber(ts) or 0, tonumber(version) or -1
end
if not ready then
  return found
end
for i = 1, n do
  redis.call('ZREM', KEYS[n + i], reservation) -- first: it needs no memory, and what is written after it is not refused for want of it
  if rows[i] then
    local used = rows[i][1] - tonumber(ARGV[3 + (i - 1) * 6])
    if used <= 0 then
      redis.call('DEL', KEYS[i])
    else
      redis.call('SET', KEYS[i], string.format('%.0f %.0f %s', used, rows[i][2], rows[i][3]), 'KEEPTTL')
    end
  end
end
if #KEYS > 2 * n then
  redis.call('DEL', KEYS[2 * n + 1])
end
return {0}
