-- What reserve_server.lua has, without an expiry.
local function outlive() end

local function keep(set, reservation, due)
  redis.call('ZREMRANGEBYSCORE', set, '-inf', string.format('%.0f', now))
  redis.call('ZADD', set, string.format('%.0f', due), reservation)
end

local function hold(key, parts, due)
  redis.call('SET', key, parts)
end
