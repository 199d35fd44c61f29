-- Makes a hold, all or nothing: the most common case of Group.DecideIn for token buckets
-- that refill continuously and for concurrency limits. The script reads no records.
--
-- KEYS: n rows, the n hashes of their records, the n sets of holds that took nothing, the
-- key of the hold. ARGV[1], packed: the ttl of the hold in µs, for how long it is kept after that,
-- its field in the hashes, its JSON after the expiry, the mark of new lows; for each row version,
-- its record after number and mark up to ends, add (0: a concurrency limit), units, how many units
-- may be used before, for how long the records live after the last hold (see refill in table.go),
-- and 1 if nothing is given back when the hold expires.
-- Returns one string of lines: when the hold expires; for each row its new value. An empty
-- string: Go must decide, and nothing was done.
local n = (#KEYS - 1) / 3
local ttl, keep, field, hold, newMark, at = struct.unpack('<ddsss', ARGV[1])
local expires = now + ttl
local expiresText = format('%d', expires)
local rows, answer = {}, expiresText
for i = 1, n do
  local version, taken, add, units, room, refill, keeps
  version, taken, add, units, room, refill, keeps, at = struct.unpack('<ssddddd', ARGV[1], at)
  local t, before, due, till, mark, next, list = open(KEYS[i], version, add)
  if not t or before > room then
    return ''
  end
  local records = call('HLEN', KEYS[n + i])
  if records + call('ZCARD', KEYS[2 * n + i]) >= 10000 then -- maybe too many live records
    return ''
  end
  local ends, last, lastText = '9007199254740991', expires, expiresText
  if keeps == 1 then
    last = expires + keep
    lastText = format('%d', last)
    ends = lastText
  end
  if not due or last < due + 0 then
    due = lastText
  end
  if till and till + 0 > last then
    last = till + 0
  else
    till = lastText
  end
  local left, number, full, tail = before + units, 1, last, ''
  local leftText = format('%d', left)
  if add == 0 or not mark then
    mark = newMark
  end
  if add > 0 then
    full = t + ceil(left / add)
    if list then
      local numbers, lows = parse(list, before)
      number = next
      push(numbers, lows, number, left)
      if #lows > 32 then -- the two neighbours whose lows lie closest become one
        local first = 2
        for j = 3, #lows - 1 do
          if lows[j] - lows[j - 1] < lows[first] - lows[first - 1] then
            first = j
          end
        end
        table.remove(numbers, first)
        table.remove(lows, first)
      end
      tail = textOf(mark, number + 1, numbers, lows)
    else
      tail = ' ' .. mark .. ' 2 1 ' .. leftText
    end
  end
  local text = leftText .. format(' %d ', t) .. version .. ' ' .. due .. ' ' .. till .. tail
  local lives = math.max(full, last + refill) -- at least as long as the row, whatever is taken until due
  if records > 0 then
    lives = longer(KEYS[n + i], lives)
  end
  rows[i] = {text, full, number .. ' ' .. mark .. taken .. ' ' .. ends .. ' ' .. expiresText, lives}
  answer = answer .. '\n' .. text
end

-- This write comes first, because it fails if there is a hold with this id, or no memory.
if not call('SET', KEYS[3 * n + 1], '{"expires_us":' .. expiresText .. ',' .. hold, 'PXAT', expiry(expires + keep), 'NX') then
  return ''
end
for i = 1, n do
  local r = rows[i]
  call('HSET', KEYS[n + i], field, r[3])
  if r[4] then
    call('PEXPIREAT', KEYS[n + i], expiry(r[4]))
  end
  call('SET', KEYS[i], r[1], 'PXAT', expiry(r[2]))
end
return answer
