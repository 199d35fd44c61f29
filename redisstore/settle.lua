-- Settles all parts of a hold that has not expired: the most common case of
-- Group.DecideIn. It reads no other records, except for concurrency limits when each hold
-- expires.
--
-- KEYS: n rows, the n hashes of their records, the key of the hold. ARGV: n, the hold as
-- it must be, when it expires; its new JSON up to the time at which it is forgotten,
-- after how many µs that is, and the rest; for each row version, add (0: a concurrency
-- limit), field of the record, units that were taken, units to be given back, units to
-- be charged, and how many may be used then.
-- Returns one string of lines: seconds and microseconds of the clock; for each row the
-- value found, nothing for a full bucket; for each row its list, or when the last other
-- hold of a concurrency limit expires. An empty string: Go must decide, and nothing was
-- done.
local call, format, match, ceil = redis.call, string.format, string.match, math.ceil
local n = ARGV[1] + 0
if now >= ARGV[3] + 0 or call('GET', KEYS[2 * n + 1]) ~= ARGV[2] then
  return ''
end
local rows, lines = {}, {clock[1] .. ' ' .. clock[2]}
for i = 1, n do
  local a, text, record = 7 * i, call('GET', KEYS[i]), call('HGET', KEYS[n + i], ARGV[7 * i + 2])
  local add, used, ts, version = ARGV[a + 1] + 0, 0, 0, ARGV[a]
  if text then
    used, ts, version = match(text, '^h(%d+) (%d+) (%d+)$')
  elseif add == 0 then
    return ''
  end
  local number, mark, units, of
  if record then
    number, mark, units, of = match(record, '^(%d+) (%d+) %-1 (%d+) %d+ %d+ (%d+) ')
  end
  if version ~= ARGV[a] or of ~= version or units ~= ARGV[a + 3] then
    return ''
  end
  used, ts = used + 0, ts + 0
  local r, t, left, found = {add = add}, max(now, ts), used, ''
  local kept = 1 -- fields of the hash that are not of others
  if add == 0 then
    local last = 0
    for _, other in ipairs(call('HVALS', KEYS[n + i])) do
      if other ~= record then
        local ends = tonumber(match(other, '^%d+ %d+ %-?%d+ %d+ %d+ %d+ %d+ (%d+) '))
        if now >= ends then
          return ''
        end
        last = max(last, ends)
      end
    end
    left, found = max(0, left - units), format('%d', last)
  else
    if used > 0 then
      left = used - (t - ts) * add
      if left < 0 then
        left = 0
      end
    end
    local l, list = readList(KEYS[n + i])
    if l then
      kept = 2
    end
    if l and text then
      found = list
      if l.till > 0 or now >= l.due or l.mark ~= mark + 0 then -- it has reservations too, or holds that may have expired, or is a later one
        return ''
      end
      if left > 0 then
        lowerLast(l, left)
        left = left - takeUnits(l, number + 0, ARGV[a + 4] + 0)
        r.list = left > 0 and l
      end
    end
    left = left + ARGV[a + 5]
    if left > ARGV[a + 6] + 0 then
      return ''
    end
  end
  r.t, r.left, r.others, rows[i] = t, left, call('HLEN', KEYS[n + i]) > kept, r
  lines[1 + i], lines[1 + n + i] = text or '', found
end

-- Writes that need no memory come first. The server does not refuse the writes after
-- them.
for i = 1, n do
  local r, records = rows[i], KEYS[n + i]
  if not r.others then
    call('DEL', records)
  elseif r.list then
    call('HDEL', records, ARGV[7 * i + 2])
  else
    call('HDEL', records, ARGV[7 * i + 2], '')
  end
end
for i = 1, n do
  local a, r, row, records = 7 * i, rows[i], KEYS[i], KEYS[n + i]
  if r.others and r.list then
    call('HSET', records, '', listText(r.list))
  end
  if r.left == 0 then
    call('DEL', row)
  else
    local text = format('%s%d %d %s', r.others and 'h' or '', r.left, r.t, ARGV[a])
    if r.add == 0 then
      call('SET', row, text, 'KEEPTTL')
    else
      local full = r.t + ceil(r.left / r.add)
      put(row, text, full)
      if r.others and ARGV[a + 5] ~= '0' then
        prolong(records, full, livesUntil(records))
      end
    end
  end
end
local forget = now + ARGV[5]
put(KEYS[2 * n + 1], ARGV[4] .. format('%d', forget) .. ARGV[6], forget)
return table.concat(lines, '\n')
