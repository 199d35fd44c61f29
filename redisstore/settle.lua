-- Settles all parts of a hold that has not expired: the most common case of
-- Group.DecideIn. It reads no other records, unless the last hold of a concurrency limit
-- ends before others.
--
-- KEYS: n rows, the n hashes of their records, the key of the hold. ARGV: n, the hold as
-- it must be, its id, when it expires; its new JSON up to the time at which it is
-- forgotten, after how many µs that is, and the rest; for each row version, add (0: a
-- concurrency limit), units that were taken, units to be given back, units to be charged,
-- and how many may be used then.
-- Returns one string of lines: seconds and microseconds of the clock; for each row the
-- value found, nothing for a full bucket; for each row when the last other hold expires.
-- An empty string: Go must decide, and nothing was done.
local call, format, match, ceil = redis.call, string.format, string.match, math.ceil
local n, field = ARGV[1] + 0, ':' .. ARGV[3]
if now >= ARGV[4] + 0 or call('GET', KEYS[2 * n + 1]) ~= ARGV[2] then
  return ''
end
local rows, lines = {}, {clock[1] .. ' ' .. clock[2]}
for i = 1, n do
  local a, text, record = 6 * i + 2, call('GET', KEYS[i]), call('HGET', KEYS[n + i], field)
  local version, add = ARGV[a] + 0, ARGV[a + 1] + 0
  local r = {used = 0, ts = 0, version = version}
  if text then
    r = readRow(text)
  elseif add == 0 then
    return ''
  end
  if not r or not record or r.version ~= version or r.due and now >= r.due then -- it has reservations too, or holds that may have expired
    return ''
  end
  local number, mark, units, expires = match(record, '^(%d+) (%d+) %-1 (%d+) %d+ %d+ %d+ (%d+)$')
  if units ~= ARGV[a + 2] then
    return ''
  end
  local t = max(now, r.ts)
  local left = max(0, r.used - (t - r.ts) * add)
  r.others = call('HLEN', KEYS[n + i]) > 1
  if add == 0 then
    left = max(0, left - units)
    if expires + 0 >= (r.till or 0) then -- another one is the last now
      r.till = 0
      for _, other in ipairs(call('HVALS', KEYS[n + i])) do
        if other ~= record then
          r.till = max(r.till, tonumber(match(other, '(%d+)$')))
        end
      end
    end
  else
    if r.lows and r.mark ~= mark + 0 then -- of a row that was full meanwhile
      return ''
    end
    if r.lows and left > 0 then
      lowerLast(r, left)
      left = left - takeUnits(r, number + 0, ARGV[a + 3] + 0)
    end
    if left == 0 or not r.others then
      r.lows, r.due, r.till = nil, nil, nil
    end
    left = left + ARGV[a + 4]
    if left > ARGV[a + 5] + 0 then
      return ''
    end
  end
  r.add, r.t, r.left, rows[i] = add, t, left, r
  lines[1 + i], lines[1 + n + i] = text or '', format('%d', r.others and r.till or 0)
end

-- Writes that need no memory come first. The server does not refuse the writes after
-- them.
for i = 1, n do
  call('HDEL', KEYS[n + i], field)
end
for i = 1, n do
  local r, row = rows[i], KEYS[i]
  if r.left == 0 then
    call('DEL', row)
  elseif r.add == 0 then
    call('SET', row, rowText(r, r.left, r.t), 'KEEPTTL')
  else
    local full = r.t + ceil(r.left / r.add)
    put(row, rowText(r, r.left, r.t), full)
    if r.lows and ARGV[6 * i + 6] ~= '0' then
      prolong(KEYS[n + i], full)
    end
  end
end
local forget = now + ARGV[6]
put(KEYS[2 * n + 1], ARGV[5] .. format('%d', forget) .. ARGV[7], forget)
return table.concat(lines, '\n')
