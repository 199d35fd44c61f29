-- The time is the last argument, for tests. Nothing expires: the server's
-- expiry goes by its own clock.
local now, expires = tonumber(ARGV[#ARGV]), false

local function put(key, used, ts, version, full)
  redis.call('SET', key, string.format('%d %d %s', used, ts, version))
end
