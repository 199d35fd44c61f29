-- A take of one bucket that refills all the time: the call that everybody
-- makes. It is set.lua for one row whose ticks are a microsecond.
--
-- KEYS: the row. ARGV: version, add, units, what may be used before them.
-- Returns one string: the clock's seconds and microseconds, and the row as it
-- was found, if there is one; nothing of a row of another version or with a list
-- of records, which is left alone. A reply that is a list, or a number that is
-- printed, costs the server more, and each call and each captured string counts
-- here: it writes by itself.
local call, key, version, used, ts = redis.call, KEYS[1], ARGV[1], 0, 0
local row = call('GET', key)
if row then
  local known
  used, ts, known = string.match(row, '^([1-9]%d*) (%d+) (%d+)$')
  if known ~= version then -- or a list, or no row at all, which decide.lua says
    return ''
  end
  used, ts = used + 0, ts + 0
end
local add, t, left, ceil = ARGV[2] + 0, now, used, math.ceil
if ts > t then
  t = ts
end
if used > 0 then
  {{statements 2 "leftAfter" "used" (ticksUpTo "ts" "t" "" 1) "add" unbounded "left"}}
end
if left <= ARGV[4] + 0 then
  left = left + ARGV[3]
  local format, full = string.format, {{dueAt "t" (ticksFor "left" "add") "" 1}}
  if not expires then
    put(key, format('%d %d %s', left, t, version), full)
  else
    if full < now + 2000000 then
      full = now + 2000000
    end
    call('SET', key, format('%d %d %s', left, t, version), 'PXAT', format('%d', full / 1000 + 1))
  end
end
if row then
  return clock[1] .. ' ' .. clock[2] .. ' ' .. row
end
return clock[1] .. ' ' .. clock[2]
