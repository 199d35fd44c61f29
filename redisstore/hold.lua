-- Takes from buckets that may have holds, and makes a hold of what was taken, all or
-- nothing: the most common case of Group.DecideIn for token buckets that refill
-- continuously and for concurrency limits. Of the records it reads only the list of lows,
-- and for concurrency limits when each hold expires.
--
-- KEYS: n rows, the n hashes of their records; for a hold, its key and the n sets of holds
-- that took nothing. ARGV: n, the ttl of
-- the hold in µs or 0, its id, its JSON up to the times, the mark of new lists; for each
-- row version, add (0: a concurrency limit), units, how many units may be used before, a
-- k if nothing is given back when the hold expires, and the rest of its part's JSON.
-- Returns one string of lines: seconds and microseconds of the clock; for each row the
-- value found, nothing for a full bucket; for each row number and mark of its record,
-- and when the last other hold of a concurrency limit expires. An empty string: Go must
-- decide, and nothing was done.
local call, format, match, ceil = redis.call, string.format, string.match, math.ceil
local n, ttl, id = ARGV[1] + 0, ARGV[2] + 0, ARGV[3]
local expires, rows, lines, parts = now + ttl, {}, {clock[1] .. ' ' .. clock[2]}, {}
for i = 1, n do
  local a, text = 6 * i, call('GET', KEYS[i])
  local held, used, ts, version = '', 0, 0, nil
  if text then
    held, used, ts, version = match(text, '^(h?)(%d+) (%d+) (%d+)$')
    if version ~= ARGV[a] or held == '' and string.byte(text) == 48 then
      return ''
    end
    used, ts = used + 0, ts + 0
  end
  if ttl > 0 and call('HLEN', KEYS[n + i]) + call('ZCARD', KEYS[2 * n + 1 + i]) >= 10000 then -- maybe too many live records
    return ''
  end
  local add, t, left = ARGV[a + 1] + 0, max(now, ts), used
  if add > 0 and used > 0 then
    left = used - (t - ts) * add
    if left < 0 then
      left = 0
    end
  end
  if left > ARGV[a + 3] + 0 then
    return ''
  end
  local r = {held = held == 'h', add = add, t = t, before = left, after = left + ARGV[a + 2], stays = 0, number = 1, mark = ARGV[5] + 0}
  if r.held then
    r.list = add > 0 and readList(KEYS[n + i])
    if r.list and (r.list.till > 0 or now >= r.list.due) then -- it has reservations too, or holds that may have expired
      return ''
    end
  end
  if r.held or ttl > 0 then -- there may be records of a row that was full
    r.stays = livesUntil(KEYS[n + i])
  end
  local last = 0
  if add == 0 and r.held then
    local records = call('HVALS', KEYS[n + i])
    if #records == 0 then -- they have expired, and nothing is used
      return ''
    end
    for _, record in ipairs(records) do
      local ends = tonumber(match(record, '^%d+ %d+ %-?%d+ %d+ %d+ %d+ %d+ (%d+) '))
      if now >= ends then
        return ''
      end
      last = max(last, ends)
    end
  end
  if r.list and left > 0 then
    lowerLast(r.list, left)
    r.number, r.mark = r.list.next, r.list.mark
  elseif add > 0 then
    r.void = r.list
    r.list = ttl > 0 and {mark = r.mark, next = 1, till = 0, due = expires, numbers = {}, lows = {}}
  end
  if ttl > 0 and add > 0 then
    append(r.list, r.after)
    r.list.due = min(r.list.due, expires)
  end
  rows[i], parts[i] = r, format('{"number":%d,"mark":%d,', r.number, r.mark) .. ARGV[a + 5]
  lines[1 + i], lines[1 + n + i] = text or '', format('%d %d %d', r.number, r.mark, last)
end

-- These writes come first, because they fail if there is a hold with this id, or no
-- memory.
if ttl > 0 then
  local forget = expires + min(max(ttl, 60000000), 3600000000)
  local text = ARGV[4] .. format('"expires_us":%d,"forget_us":%d,"parts":[', expires, forget) .. table.concat(parts, ',') .. ']}'
  if not put(KEYS[2 * n + 1], text, forget, true) then
    return ''
  end
end
for i = 1, n do
  local a, r, records = 6 * i, rows[i], KEYS[n + i]
  local held, full = r.held or ttl > 0, expires
  if r.add > 0 then
    full = r.t + ceil(r.after / r.add)
  end
  if ttl > 0 then
    local ends = ARGV[a + 4] == 'k' and expires or 9007199254740991
    local field, record = format(':%d %d', r.number, r.mark),
      format('%d %d -1 %d %d %d %s %d %s', r.number, r.mark, ARGV[a + 2], now, ends, ARGV[a], expires, id)
    if r.list then
      call('HSET', records, field, record, '', listText(r.list))
    else
      call('HSET', records, field, record)
    end
  elseif r.list then
    call('HSET', records, '', listText(r.list))
  elseif r.void then
    call('HDEL', records, '')
  end
  local lives = full
  if held then
    local till = max(full, expires, now + 2000000) -- at least as long as the row
    prolong(records, till, r.stays)
    if r.add == 0 then
      lives = max(till, r.stays)
    end
  end
  put(KEYS[i], format('%s%d %d %s', held and 'h' or '', r.after, r.t, ARGV[a]), lives)
end
return table.concat(lines, '\n')
