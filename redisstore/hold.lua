-- Makes a hold, all or nothing: the most common case of Group.DecideIn for token buckets
-- that refill continuously and for concurrency limits. The script reads no records.
--
-- KEYS: n rows, the n hashes of their records, the n sets of holds that took nothing, the
-- key of the hold. ARGV: the hold's field in the hashes; its JSON after the times; an array
-- of integers in MessagePack: the ttl of the hold in µs, for how long it is kept after that,
-- the mark of new lows, and for each row version, add (0: a concurrency limit), units, how
-- many units may be used before, how long a full bucket needs to fill again, 1 if nothing is
-- given back when the hold expires, and the units of a token.
-- Returns one string of lines: seconds and microseconds of the clock; for each row its new
-- value. An empty string: Go must decide, and nothing was done.
local n, field, a = (#KEYS - 1) / 3, ARGV[1], cmsgpack.unpack(ARGV[3])
local expires = now + a[1]
local forget = expires + a[2]
local expiry, forgotten = format('%d', expires), format('%d', forget)
local rows, answer = {}, clock[1] .. ' ' .. clock[2]

-- append adds an entry to the lows. If there are too many entries, the two
-- neighbours with the closest lows are joined.
local function append(r)
  local numbers, lows = r.numbers, r.lows
  push(r, r.next, r.left)
  r.next = r.next + 1
  if #lows <= 32 then
    return
  end
  local at = 2
  for i = 3, #lows - 1 do
    if lows[i] - lows[i - 1] < lows[at] - lows[at - 1] then
      at = i
    end
  end
  table.remove(numbers, at)
  table.remove(lows, at)
end

for i = 1, n do
  local at = 7 * i - 3
  local r = open(KEYS[i], a[at], a[at + 1])
  if not r or r.left > a[at + 3] then
    return ''
  end
  r.records = call('HLEN', KEYS[n + i])
  if r.records + call('ZCARD', KEYS[2 * n + i]) >= 10000 then -- maybe too many live records
    return ''
  end
  r.left = r.left + a[at + 2]
  local number, mark = 1, a[3]
  if r.add > 0 then
    if not r.lows then
      r.mark, r.next, r.numbers, r.lows = mark, 1, {}, {}
    end
    number, mark = r.next, r.mark
    append(r)
  end
  local till, ends = expires, '9007199254740991'
  if a[at + 5] == 1 then
    till, ends = forget, forgotten
  end
  r.due, r.till = min(r.due or till, till), max(r.till or till, till)
  r.record = format('%d %d -1 %d 0 %s %d %s', number, mark, a[at + 2], ends, a[at + 6], expiry)
  r.text = rowText(r)
  rows[i], answer = r, answer .. '\n' .. r.text
end

-- This write comes first, because it fails if there is a hold with this id, or no memory.
if not put(KEYS[3 * n + 1], '{"forget_us":' .. forgotten .. ',"expires_us":' .. expiry .. ',' .. ARGV[2], forget, true) then
  return ''
end
for i = 1, n do
  local r, lives = rows[i], rows[i].till
  if r.add > 0 then
    lives = r.t + ceil(r.left / r.add)
  end
  call('HSET', KEYS[n + i], field, r.record)
  local lengthen = r.records == 0 and expire or prolong
  lengthen(KEYS[n + i], max(lives, r.till + a[7 * i + 1], now + 2000000)) -- at least as long as the row, whatever is taken until due
  put(KEYS[i], r.text, lives)
end
return answer
