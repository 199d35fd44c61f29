-- This file sets when keys expire. With a test's clock the expiry is later by shift, in ms.
local call, format, max, ceil = redis.call, string.format, math.max, math.ceil

-- put writes a row that is full at the time full, in µs. The row lives for at least
-- two seconds: by then every program knows of a change to a slower version, and the
-- expiry of rows written before was lengthened. put returns false for a new row if
-- something else has its key.
local function put(key, row, full, new)
  local expiry = format('%d', ceil(max(full, now + 2000000) / 1000) + shift)
  if new then
    return call('SET', key, row, 'PXAT', expiry, 'NX')
  end
  call('SET', key, row, 'PXAT', expiry)
  return true
end

-- expire sets when a key expires, in µs.
local function expire(key, at)
  call('PEXPIREAT', key, format('%d', ceil(at / 1000) + shift))
end

-- prolong makes a key that expires live at least until a given time. PTTL may be up to a
-- second too early, because the server may stop between TIME and PTTL: setting a time
-- that is too early would shorten the key's life.
local function prolong(key, till)
  local left = call('PTTL', key)
  local stays = real + 1000 * (left - shift) + 1000000
  if left >= 0 and till >= stays - 1001000 then
    expire(key, max(till, stays))
  end
end
