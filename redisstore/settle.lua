-- Settles all parts of a hold that has not expired: the most common case of
-- Group.DecideIn. It reads no other records, unless the last hold of a concurrency limit
-- ends before others. Each part has its record exactly until it ends in another way.
--
-- KEYS: n rows, the n hashes of their records, the key of the hold. ARGV[1], packed: when the hold
-- expires, for how many µs it is kept, its field in the hashes, its new JSON after the time at
-- which it is forgotten; for each row version, its record after number and mark, add (0: a
-- concurrency limit), units to be given back, units to be charged, and how many may be used then.
-- Returns one string of lines: when the hold is forgotten; for each row its new value, nothing for
-- a full bucket. An empty string: Go must decide, and nothing was done.
local n = (#KEYS - 1) / 2
local expires, keep, field, hold, at = struct.unpack('<ddss', ARGV[1])
if now >= expires then
  return ''
end

local forget = now + keep
local forgetText = format('%d', forget)
local rows, answer = {}, forgetText
for i = 1, n do
  local version, held, add, units, charge, most
  version, held, add, units, charge, most, at = struct.unpack('<ssdddd', ARGV[1], at)
  local record = call('HGET', KEYS[n + i], field)
  local number, mark, rest = match(record or '', '^(%d+) (%d+)(.*)$')
  if rest ~= held then
    return ''
  end
  local t, left, due, till, own, next, list = open(KEYS[i], version, add)
  if not t then
    return ''
  end
  local tail = ''
  if add == 0 then
    if units > left then
      return ''
    end
    left = left - units
    if left > 0 then
      if expires >= till + 0 then -- another one is the last now
        local last = 0
        for _, other in ipairs(call('HVALS', KEYS[n + i])) do
          if other ~= record then
            last = math.max(last, tonumber(match(other, '(%d+)$')))
          end
        end
        till = format('%d', last)
      end
      tail = ' ' .. due .. ' ' .. till
    end
  elseif list then
    if own ~= mark then -- of a row that was full meanwhile
      return ''
    end
    if next == '2' then -- it is the only record
      left = left - math.min(units, left, tonumber(match(list, '%d+$')))
    else
      -- Units are subtracted from every low, beginning with the one that covers the record. If
      -- a low is smaller than units, only the low is passed on.
      local numbers, lows = parse(list, left)
      for j = 1, #lows do
        if j == #lows or tonumber(numbers[j + 1]) > tonumber(number) then
          units = math.min(units, lows[j])
          lows[j] = lows[j] - units
        end
      end
      left = left - units
      if left > 0 and call('HLEN', KEYS[n + i]) > 1 then
        tail = ' ' .. due .. ' ' .. till .. textOf(own, next, numbers, lows)
      end
    end
  end
  left = left + charge
  if left > most then
    return ''
  end
  local text = ''
  if left > 0 then
    text = format('%d %d ', left, t) .. version .. tail
  end
  rows[i] = {text, add > 0 and t + ceil(left / add), charge > 0 and tail ~= ''}
  answer = answer .. '\n' .. text
end

-- Writes that need no memory come first. After them the server does not refuse the
-- other writes.
for i = 1, n do
  call('HDEL', KEYS[n + i], field)
end
for i = 1, n do
  local text, full, longest = unpack(rows[i])
  if text == '' then
    call('DEL', KEYS[i])
  elseif full then
    call('SET', KEYS[i], text, 'PXAT', expiry(full))
    local till = longest and longer(KEYS[n + i], full)
    if till then -- its records live as long as the row
      call('PEXPIREAT', KEYS[n + i], expiry(till))
    end
  else
    call('SET', KEYS[i], text, 'KEEPTTL')
  end
end
call('SET', KEYS[2 * n + 1], '{"forget_us":' .. forgetText .. ',' .. hold, 'PXAT', expiry(forget))
return answer
