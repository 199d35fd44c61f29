-- Decides any number of groups of plain buckets at one time, one after the other, each
-- all or nothing: no calendar, not leaky, no reservations. Its twin in Go is set.go,
-- which computes the answers from the rows returned. Doubles are exact here: every number
-- is an integer below 2^53, a quotient of two such numbers rounds to an integer only if
-- it is one, and a product above 2^53 stays above what it is compared with. No error may
-- be raised once a row is written, because charged calls would then get an error. So a
-- key that is not a bucket is skipped like a row of another version.
--
-- KEYS: rows. ARGV[1]: an array of integers in MessagePack, which the server reads
-- several times as fast as separate arguments:
--  the number of limits; for each version, every, add, origin
--  for each row twice the index of its limit, and one more if the row must have no records; or that negated, and the row's own origin
--  the requests, in order, with rows by index:
--    0 row units: give units back
--    count n, and n times row units room: take units of all rows, if at most room is used of
--    each, up to count times (takes of one cost, a take up to, a charge); a negative row is in
--    shadow mode, and its count is 1
-- Returns one string of lines: seconds and microseconds of the clock and the number
-- of rows written; for each row the value found: nothing for a full bucket, - for a
-- skipped row. An empty string: nothing was done, because something else has the
-- key of a new row.
local floor, min, abs, match = math.floor, math.min, math.abs, string.match
local a, n = cmsgpack.unpack(ARGV[1]), #KEYS
local rows
if n == 1 then
  rows = {call('GET', KEYS[1])}
else
  rows = call('MGET', unpack(KEYS))
end

-- used has the used units of the rows at the times in times; after has the used units to
-- be written. low has the last low of a row with records, and tails the text between
-- version and low.
local used, times, rules, origins, after, lesser, low, tails, reply = {}, {}, {}, {}, {}, {}, {}, {}, {''}
local at = 2 + 4 * a[1]
for i = 1, n do
  local rule = a[at]
  at = at + 1
  local origin
  if rule < 0 then
    rule, origin, at = -rule, a[at], at + 1
  end
  local bare = rule % 2 == 1
  rule = 2 * (rule - rule % 2) - 2
  origin = origin or a[rule + 3]
  rules[i], origins[i] = rule, origin
  local row = rows[i]
  if not row then
    used[i], times[i], reply[i + 1] = 0, now, ''
  else
    local left, ts, known = match(row, '^([1-9]%d*) (%d+) (%d+)$')
    if not left and not bare then
      local due
      left, ts, known, due, tails[i], low[i] = match(row, '^(%d+) (%d+) (%d+) (%d+)( %d+ %d+ %d+ .* )(%d+)$')
      if left and now < due + 0 then
        tails[i], low[i] = ' ' .. due .. tails[i], low[i] + 0
      else
        left, low[i] = nil, nil
      end
    end
    if left then
      left, ts = left + 0, ts + 0
    end
    if not left or known + 0 ~= a[rule] or left > 9007199254740991 or ts > 9007199254740991 then
      reply[i + 1] = '-'
    else
      local t, every = max(now, ts), a[rule + 1]
      local ticks = floor((t - origin) / every) - floor((ts - origin) / every)
      used[i], times[i], reply[i + 1] = max(0, left - ticks * a[rule + 2]), t, row
    end
  end
end

-- change sets the units in use, and lowers the last low to those used before. A row that
-- was full has no lows.
local function change(i, left)
  if low[i] then
    low[i] = used[i] > 0 and min(low[i], used[i]) or nil
  end
  used[i], after[i] = left, left
end

local last = #a
while at <= last do
  local fit = a[at]
  if fit == 0 then
    local row = a[at + 1]
    if used[row] and used[row] > 0 then
      change(row, max(0, used[row] - a[at + 2]))
      lesser[row] = true
    end
    at = at + 3
  else
    local from, to = at + 2, at + 1 + 3 * a[at + 1]
    at = to + 1
    for j = from, to, 3 do
      local left, units, room = used[abs(a[j])], a[j + 1], a[j + 2]
      if not left or a[j] > 0 and left > room then
        fit = 0
      elseif a[j] > 0 and units > 0 then
        fit = min(fit, floor((room - left) / units) + 1)
      end
    end
    for j = from, fit > 0 and to or 0, 3 do
      local r, units = abs(a[j]), fit * a[j + 1]
      if units > 0 and used[r] <= a[j + 2] then
        change(r, used[r] + units)
      end
    end
  end
end

-- write stores a row.
local function write(i, new)
  local left, t, rule = after[i], times[i], rules[i]
  local full = origins[i] + (floor((t - origins[i]) / a[rule + 1]) + ceil(left / a[rule + 2])) * a[rule + 1]
  local text = format('%d %d %d', left, t, a[rule])
  if low[i] then
    text = text .. tails[i] .. format('%d', low[i])
  end
  return put(KEYS[i], text, full, new)
end

-- New rows come first, because their writes fail if something else has the key. If memory
-- is full, the first write fails, and nothing was done. Rows that get units back come
-- last: each is deleted before it is written, so that they need no memory, and the server
-- does not refuse later writes.
local written = 0
for i = 1, n do
  if after[i] then
    written = written + 1
    if not rows[i] and after[i] > 0 and not write(i, true) then
      for j = 1, i - 1 do
        if after[j] and not rows[j] then
          call('DEL', KEYS[j])
        end
      end
      return ''
    end
  end
end
for i = 1, n do
  if after[i] and rows[i] and not lesser[i] then
    write(i)
  end
end
for i in pairs(lesser) do
  if rows[i] then
    call('DEL', KEYS[i])
    if after[i] > 0 then
      write(i)
    end
  end
end
reply[1] = clock[1] .. ' ' .. clock[2] .. ' ' .. written
return table.concat(reply, '\n')
