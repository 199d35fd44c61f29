-- For tests: the time is the last argument. Keys would expire by the server's clock, so
-- their expiry is later by shift, in ms, and the tests delete them when it is time.
local clock = {0, ARGV[#ARGV]}
local now, expires, shift, real = tonumber(clock[2]), false, 2 ^ 42, redis.call('TIME')
real = real[1] * 1000000 + real[2] - real[2] % 1000

local function put(key, row, full, new)
  local expiry = string.format('%.0f', math.ceil(math.max(full, now + 2000000) / 1000) + shift)
  if new then
    return redis.call('SET', key, row, 'PXAT', expiry, 'NX')
  end
  redis.call('SET', key, row, 'PXAT', expiry)
  return true
end
