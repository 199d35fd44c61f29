-- Takes from several buckets that refill continuously, all or nothing: take_one.lua
-- for a group. It is set.lua for this case at 0.7 of the cost, because the request
-- is a table already, and the only other table is the reply.
--
-- KEYS: rows. ARGV[1]: an array of integers in MessagePack, four for each row:
-- version, add, units, and how many units may be used before. Returns one string of
-- lines: seconds and microseconds of the clock, and for each row the value found,
-- nothing for a full bucket. An empty string: a row has another version or a list
-- of records, or is not a row, and nothing was done.
local call, match, format, ceil = redis.call, string.match, string.format, math.ceil
local a, lines, fits, at = cmsgpack.unpack(ARGV[1]), {clock[1] .. ' ' .. clock[2]}, true, 1
for i = 1, #KEYS do
  local row, left, t = call('GET', KEYS[i]), 0, now
  if row then
    local ts, known
    left, ts, known = match(row, '^([1-9]%d*) (%d+) (%d+)$')
    if not known or known + 0 ~= a[at] then
      return ''
    end
    left, ts = left + 0, ts + 0
    if ts > t then
      t = ts
    end
    {{statements 4 "leftAfter" "left" (ticksUpTo "ts" "t" "" 1) "a[at + 1]" unbounded "left"}}
  end
  lines[i + 1] = row or ''
  fits = fits and left <= a[at + 3]
  a[at + 2], a[at + 3] = left + a[at + 2], t -- to be stored
  at = at + 4
end
if fits then
  at = 1
  for i = 1, #KEYS do
    local left, t = a[at + 2], a[at + 3]
    local full = {{dueAt "t" (ticksFor "left" "a[at + 1]") "" 1}}
    local row = format('%d %d %d', left, t, a[at])
    if not expires then
      put(KEYS[i], row, full)
    else
      if full < now + 2000000 then
        full = now + 2000000
      end
      call('SET', KEYS[i], row, 'PXAT', format('%d', full / 1000 + 1))
    end
    at = at + 4
  end
end
return table.concat(lines, '\n')
