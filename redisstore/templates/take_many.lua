-- Takes from any number of plain buckets, each bucket independently: the most
-- common request of a batch. It is set.lua for this case at 0.8 of the cost: each
-- bucket is read, stepped and written in one pass, without tables.
--
-- No error may be raised once a row is written, because charged calls would then get an
-- error. If memory is full the first write fails, and nothing was done.
--
-- KEYS: rows. ARGV[1]: an array of integers in MessagePack:
--  the number of limits; for each version, every, add, origin, cap
--  for each row the index of its limit, or that negated and the row's own origin; units, and how many pieces of these units are requested
-- Returns the same as set.lua: seconds and microseconds of the clock and the number
-- of rows written; for each row the value found: nothing for a full bucket, - for a
-- skipped row.
local call, floor, ceil, format, match = redis.call, math.floor, math.ceil, string.format, string.match
local a, n = cmsgpack.unpack(ARGV[1]), #KEYS
local rows
if n == 1 then
  rows = {call('GET', KEYS[1])}
else
  rows = call('MGET', unpack(KEYS))
end
local at, last, version, written = 2 + 5 * a[1], 0, '', 0
for i = 1, n do
  local rule, origin = a[at], nil
  at = at + 1
  if rule < 0 then
    rule, origin, at = 5 * -rule - 3, a[at], at + 1
  else
    rule = 5 * rule - 3
    origin = a[rule + 3]
  end
  if rule ~= last then
    last, version = rule, format('%d', a[rule])
  end
  local every, add, row, left, t = a[rule + 1], a[rule + 2], rows[i], 0, now
  if not row then
    rows[i] = ''
  else
    local ts, known
    left, ts, known = match(row, '^([1-9]%d*) (%d+) (%d+)$')
    if known == version then
      left, ts = left + 0, ts + 0
      if left > 9007199254740991 or ts > 9007199254740991 then
        left = nil
      else
        if ts > t then
          t = ts
        end
        local ticks
        {{statements 8 "ticksUpTo" "ts" "t" "origin" "every" "ticks"}}
        {{statements 8 "leftAfter" "left" "ticks" "add" unbounded "left"}}
      end
    else
      left = nil
    end
    if not left then
      rows[i] = '-'
    end
  end
  if left then
    local units, fit = a[at], nil
    {{statements 4 "pieces" "left" "units" "a[rule + 4]" "a[at + 1]" "fit"}}
    if fit > 0 then
      left = {{added "left" "fit * units"}}
      local full
      {{statements 6 "dueAt" "t" (ticksFor "left" "add") "origin" "every" "full"}}
      if put(KEYS[i], format('%d %d %s', left, t, version), full, not row) then
        written = written + 1
      else -- something else has the key of a new row
        rows[i] = '-'
      end
    end
  end
  at = at + 2
end
return clock[1] .. ' ' .. clock[2] .. ' ' .. written .. '\n' .. table.concat(rows, '\n')
