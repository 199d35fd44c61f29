-- The server's clock decides, and its expiry removes rows once they are full.
local clock = redis.call('TIME')
local now, expires = clock[1] * 1000000 + clock[2], true

-- put stores a row that is full again at the instant full, in µs. It is kept
-- for two seconds at least: by then a program that has not heard of a slower
-- version has, and rows it wrote have had their expiry lengthened.
local function put(key, used, ts, version, full)
  if full < now + 2000000 then
    full = now + 2000000
  end
  redis.call('SET', key, string.format('%d %d %s', used, ts, version), 'PXAT', string.format('%d', math.ceil(full / 1000)))
end
