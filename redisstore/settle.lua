-- Settles all parts of a hold that has not expired: the most common case of
-- Group.DecideIn. It reads no other records, unless the last hold of a concurrency limit
-- ends before others. Each part has its record exactly until it ends in another way.
--
-- KEYS: n rows, the n hashes of their records, the key of the hold. ARGV: the hold's field in
-- the hashes; its new JSON after the time at which it is forgotten; an array of integers in
-- MessagePack: when it expires, for how many µs it is kept, and for each row version, add (0:
-- a concurrency limit), units to be given back, units to be charged, and how many may be used
-- then; for each row its record after number and mark.
-- Returns one string of lines: seconds and microseconds of the clock; for each row its new
-- value, nothing for a full bucket. An empty string: Go must decide, and nothing was done.
local n, field, a = (#KEYS - 1) / 2, ARGV[1], cmsgpack.unpack(ARGV[3])
if now >= a[1] then
  return ''
end

-- takeUnits subtracts units from every low, beginning with the one that covers a record.
-- If a low is smaller than units, only the low is passed on. takeUnits returns what is
-- left of units after the last low.
local function takeUnits(r, number, units)
  local numbers, lows = r.numbers, r.lows
  r.numbers, r.lows = {}, {}
  for i = 1, #lows do
    local low = lows[i]
    if i == #lows or numbers[i + 1] > number then
      units = min(units, low)
      low = low - units
    end
    push(r, numbers[i], low)
  end
  return units
end

local rows, answer = {}, clock[1] .. ' ' .. clock[2]
for i = 1, n do
  local at, record = 5 * i - 2, call('HGET', KEYS[n + i], field)
  local number, mark, rest = match(record or '', '^(%d+) (%d+) (.*)$')
  local r = rest == ARGV[3 + i] and open(KEYS[i], a[at], a[at + 1])
  if not r then
    return ''
  end
  local units = a[at + 2]
  if r.add == 0 then
    if units > r.left then
      return ''
    end
    r.left = r.left - units
    if r.left > 0 and a[1] >= r.till then -- another one is the last now
      r.till = 0
      for _, other in ipairs(call('HVALS', KEYS[n + i])) do
        if other ~= record then
          r.till = max(r.till, tonumber(match(other, '(%d+)$')))
        end
      end
    end
  else
    if r.lows and r.mark ~= mark then -- of a row that was full meanwhile
      return ''
    end
    if r.lows then
      r.left = r.left - takeUnits(r, number + 0, units)
      if r.left == 0 or r.next == 2 or call('HLEN', KEYS[n + i]) == 1 then
        r.lows, r.due, r.till = nil, nil, nil
      end
    end
    r.left = r.left + a[at + 3]
    if r.left > a[at + 4] then
      return ''
    end
  end
  r.text = r.left > 0 and rowText(r) or ''
  rows[i], answer = r, answer .. '\n' .. r.text
end

-- Writes that need no memory come first. After them the server does not refuse the
-- other writes.
for i = 1, n do
  call('HDEL', KEYS[n + i], field)
end
for i = 1, n do
  local r, row = rows[i], KEYS[i]
  if r.left == 0 then
    call('DEL', row)
  elseif r.add == 0 then
    call('SET', row, r.text, 'KEEPTTL')
  else
    local full = r.t + ceil(r.left / r.add)
    put(row, r.text, full)
    if r.lows and a[5 * i + 1] > 0 then
      prolong(KEYS[n + i], full)
    end
  end
end
local forget = now + a[2]
put(KEYS[2 * n + 1], '{"forget_us":' .. format('%d', forget) .. ',' .. ARGV[2], forget)
return answer
