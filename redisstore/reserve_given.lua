-- The functions of reserve_server.lua without expiry, for tests.
local function expireAt() end

local function addReservation(set, reservation, due)
  redis.call('ZREMRANGEBYSCORE', set, '-inf', string.format('%.0f', now))
  redis.call('ZADD', set, string.format('%.0f', due), reservation)
end

local function storeReservation(key, parts, due)
  redis.call('SET', key, parts)
end
