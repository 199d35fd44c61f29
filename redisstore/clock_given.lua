-- The time is the last argument, for tests. Nothing expires: the server's
-- expiry goes by its own clock.
local clock = {0, ARGV[#ARGV]}
local now, expires = tonumber(clock[2]), false

local function put(key, used, ts, version, full)
  redis.call('SET', key, string.format('%d %d %s', used, ts, version))
end
