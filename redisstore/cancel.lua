-- Gives a reservation's tokens back and forgets it, in one step.
--
-- KEYS: n rows, the n sets of their reservations; where it is kept here, the
-- reservation's own key. ARGV: n, reservation; for each row the units to give
-- back and the present version of its limit.
-- Returns 0: done. 1: unknown, spent, due or reset. 2, now, and each row's used,
-- ts and version: one of them is of another version, and nothing was done.
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
    rows[i] = {tonumber(used) or 0, ts, version}
    ready = ready and version == ARGV[2 * i + 2]
  end
  found[3 * i], found[3 * i + 1], found[3 * i + 2] = tonumber(used) or 0, tonumber(ts) or 0, tonumber(version) or -1
end
if not ready then
  return found
end
for i = 1, n do
  redis.call('ZREM', KEYS[n + i], reservation) -- first: it needs no memory, and what is written after it is not refused for want of it
  if rows[i] then
    local used = rows[i][1] - tonumber(ARGV[2 * i + 1])
    if used <= 0 then
      redis.call('DEL', KEYS[i])
    else
      redis.call('SET', KEYS[i], string.format('%.0f %s %s', used, rows[i][2], rows[i][3]), 'KEEPTTL')
    end
  end
end
if #KEYS > 2 * n then
  redis.call('DEL', KEYS[2 * n + 1])
end
return {0}
