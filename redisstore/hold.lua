-- Makes a hold, all or nothing: the most common case of Group.DecideIn for token buckets
-- that refill continuously and for concurrency limits. It reads no records.
--
-- KEYS: n rows, the n hashes of their records, the n sets of holds that took nothing, the
-- key of the hold. ARGV: n, the ttl of the hold in µs, its id, its JSON up to the times,
-- the mark of new lows; for each row version, add (0: a concurrency limit), units, how many
-- units may be used before, how long a full bucket needs to fill again, a k if nothing is
-- given back when the hold expires, the units of a token, and the rest of its part's JSON.
-- Returns one string of lines: seconds and microseconds of the clock; for each row the
-- value found, nothing for a full bucket; for each row number and mark of its record. An
-- empty string: Go must decide, and nothing was done.
local call, format, ceil = redis.call, string.format, math.ceil
local n, ttl, id = ARGV[1] + 0, ARGV[2] + 0, ARGV[3]
local expires, forget = now + ttl, now + ttl + min(max(ttl, 60000000), 3600000000)
local rows, lines, parts = {}, {clock[1] .. ' ' .. clock[2]}, {}
for i = 1, n do
  local a, text = 8 * i - 2, call('GET', KEYS[i])
  local version, add = ARGV[a] + 0, ARGV[a + 1] + 0
  local r = {used = 0, ts = 0, version = version}
  if text then
    r = readRow(text)
  end
  if not r or r.version ~= version or r.due and now >= r.due then -- it has reservations too, or holds that may have expired
    return ''
  end
  r.records = call('HLEN', KEYS[n + i])
  if r.records + call('ZCARD', KEYS[2 * n + i]) >= 10000 then -- maybe too many live records
    return ''
  end
  local t = max(now, r.ts)
  local left = max(0, r.used - (t - r.ts) * add)
  if left > ARGV[a + 3] + 0 then
    return ''
  end
  r.add, r.t, r.after = add, t, left + ARGV[a + 2]
  local number, mark = 1, ARGV[5] + 0
  if add > 0 then
    if r.lows and left > 0 then
      lowerLast(r, left)
      number, mark = r.next, r.mark
    else -- there may be records of a row that was full
      r.mark, r.next, r.numbers, r.lows, r.due, r.till = mark, 1, {}, {}, nil, nil
    end
    append(r, r.after)
  end
  local keeps = ARGV[a + 5] == 'k'
  local till = keeps and forget or expires
  r.number, r.due, r.till = number, min(r.due or till, till), max(r.till or till, till)
  r.record = format('%d %d -1 %d %d %d %d %d', number, mark, ARGV[a + 2], now, keeps and forget or 9007199254740991, ARGV[a + 6], expires)
  rows[i], parts[i] = r, format('{"number":%d,"mark":%d,', number, mark) .. ARGV[a + 7]
  lines[1 + i], lines[1 + n + i] = text or '', format('%d %d', number, mark)
end

-- This write comes first, because it fails if there is a hold with this id, or no memory.
local text = ARGV[4] .. format('"expires_us":%d,"forget_us":%d,"parts":[', expires, forget) .. table.concat(parts, ',') .. ']}'
if not put(KEYS[3 * n + 1], text, forget, true) then
  return ''
end
for i = 1, n do
  local r, lives = rows[i], rows[i].till
  if r.add > 0 then
    lives = r.t + ceil(r.after / r.add)
  end
  call('HSET', KEYS[n + i], ':' .. id, r.record)
  prolong(KEYS[n + i], max(lives, r.till + ARGV[8 * i + 2], now + 2000000), r.records == 0) -- at least as long as the row, whatever is taken until due
  put(KEYS[i], rowText(r, r.after, r.t), lives)
end
return table.concat(lines, '\n')
