-- The server's clock decides, and its expiry removes rows once they are full.
local clock = redis.call('TIME')
local now, expires = clock[1] * 1000000 + clock[2], true

-- put stores a row that is full again at the instant full, in µs. It is kept
-- for two seconds at least: by then a program that has not heard of a slower
-- version has, and rows it wrote have had their expiry lengthened. That expiry,
-- the same for many rows of a call, is written once. Of a new row put returns
-- false where something else has its key.
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
