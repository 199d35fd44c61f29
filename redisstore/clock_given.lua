-- The time is the last argument, for tests. Nothing expires: the server's
-- expiry goes by its own clock.
local clock = {0, ARGV[#ARGV]}
local now, expires = tonumber(clock[2]), false

local function put(key, row, full, new)
  if new then
    return redis.call('SET', key, row, 'NX')
  end
  redis.call('SET', key, row)
  return true
end
