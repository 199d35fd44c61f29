-- The server's clock decides, and its expiry removes rows once they are full.
local clock = redis.call('TIME')
local now, expires = clock[1] * 1000000 + clock[2], true

-- put stores a row that is full again at the instant full, in µs. It is kept
-- for two seconds at least: by then a program that has not heard of a slower
-- version has, and rows it wrote have had their expiry lengthened. Of a new row
-- it returns false where something else has its key.
local function put(key, row, full, new)
  if full < now + 2000000 then
    full = now + 2000000
  end
  local expiry = string.format('%d', math.ceil(full / 1000))
  if new then
    return redis.call('SET', key, row, 'PXAT', expiry, 'NX')
  end
  redis.call('SET', key, row, 'PXAT', expiry)
  return true
end
