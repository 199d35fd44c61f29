-- A take from one bucket that refills continuously: the most common call. The
-- script is set.lua for one row with ticks of 1 µs.
--
-- KEYS: row; if an override decides, the row again. ARGV: version, add, units, and how
-- many units may be used before; if an override decides, the time at which it ends. In
-- that case the row must exist, and keeps its expiry.
-- Returns one string: seconds and microseconds of the clock, and the row as found, if there is
-- one. Or it returns a - and the row: the row has another version, or records of which one may
-- have ended, or the override has ended, and nothing was done. A reply that is a list or a
-- formatted number costs the server more.
local key, version, used, ts = KEYS[1], ARGV[1], 0, 0
local row, tail, low = call('GET', key), ''
if row then
  local known, due
  used, ts, known = string.match(row, '^([1-9]%d*) (%d+) (%d+)$')
  if known ~= version and not KEYS[2] then
    used, ts, known, due, tail, low = string.match(row, '^(%d+) (%d+) (%d+) (%d+)( %d+ %d+ %d+ .* )(%d+)$')
    if known == version then
      tail, known = ' ' .. due .. tail, now < due + 0 and known
    end
  end
  if known ~= version then -- or a record may have ended, or it is not a row, which others report
    return '-' .. row
  end
  used, ts = used + 0, ts + 0
elseif KEYS[2] then
  return '-'
end
if KEYS[2] and now >= ARGV[5] + 0 then
  return '-' .. row
end
local add, t = ARGV[2] + 0, max(now, ts)
local left = max(0, used - (t - ts) * add)
if left <= ARGV[4] + 0 then
  if low then -- a row that was full has no records
    tail = left > 0 and tail .. format('%d', math.min(left, low)) or ''
  end
  left = left + ARGV[3]
  local text = format('%d %d %s', left, t, version)
  if KEYS[2] then
    call('SET', key, text, 'KEEPTTL')
  else
    put(key, text .. tail, t + ceil(left / add))
  end
end
if row then
  return clock[1] .. ' ' .. clock[2] .. ' ' .. row
end
return clock[1] .. ' ' .. clock[2]
