-- The server's clock. Rows expire once they are full.
local clock = redis.call('TIME')
local now, expires = clock[1] * 1000000 + clock[2], true
local shift, real = 0, now -- with a test's clock they are not

-- put writes a row that is full at the time full, in µs. The row lives for at least
-- two seconds: by then every program knows of a change to a slower version, and the
-- expiry of rows written before was lengthened. This least expiry is formatted once
-- for all rows of a call. For a new row put returns false if something else has its
-- key.
local soonest
local function put(key, row, full, new)
  local expiry
  if full > now + 2000000 then
    expiry = string.format('%d', math.ceil(full / 1000))
  else
    soonest = soonest or string.format('%d', math.ceil((now + 2000000) / 1000))
    expiry = soonest
  end
  if new then
    return redis.call('SET', key, row, 'PXAT', expiry, 'NX')
  end
  redis.call('SET', key, row, 'PXAT', expiry)
  return true
end
