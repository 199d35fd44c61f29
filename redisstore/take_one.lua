-- A take of one bucket that refills all the time: the call that everybody
-- makes. It is take.lua for one row whose ticks are a microsecond.
--
-- KEYS: the row. ARGV: version, add, units, what may be used before them.
-- Returns as take.lua.
local version, used, ts = ARGV[1], 0, 0
local row = redis.call('GET', KEYS[1])
if row then
  local known
  used, ts, known = string.match(row, '(%S+) (%S+) (%S+)')
  if known ~= version then
    return {now, -1, 0}
  end
  used, ts = tonumber(used), tonumber(ts)
end
local add, t, left = tonumber(ARGV[2]), now, used
if ts > t then
  t = ts
end
if used > 0 then
  left = (t - ts) * add
  if left >= used then
    left = 0
  else
    left = used - left
  end
end
if left <= tonumber(ARGV[4]) then
  left = left + ARGV[3]
  put(KEYS[1], left, t, version, t + math.ceil(left / add))
end
return {now, used, ts}
