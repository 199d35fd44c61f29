-- Takes of any number of plain buckets, each bucket by itself: what callers that
-- are sent together ask for most often. It is set.lua for that case, at 0.8 of
-- its price: no bucket waits for another one, so each is read, stepped and
-- written in one pass, and no table is made.
--
-- Nothing may raise an error once a row is written: calls would be charged and
-- not be told. Where memory is full the first write fails, and nothing was done.
--
-- KEYS: rows. ARGV[1]: an array of integers in MessagePack:
--   the number of limits; of each version, every, add, origin, cap
--   of each row the number of its limit, or that negated and the row's own
--   origin; units, and how many pieces of so many units are asked for
-- Returns what set.lua does: the clock's seconds and microseconds and how many
-- rows were written; and of each row what was found: nothing for a full bucket,
-- - for what was left alone.
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
