-- expireAt makes a key live until a time at least: the set and the hash of a row's
-- reservations, until the last of them is due.
local function expireAt(key, till)
  redis.call('PEXPIREAT', key, string.format('%.0f', math.ceil(till / 1000) + shift))
end

-- livesUntil returns the time at which a key expires, or one that has passed if it never
-- does.
local function livesUntil(key)
  return real + 1000 * (redis.call('PTTL', key) - shift)
end

-- addReservation adds a reservation to the set of a row.
local function addReservation(set, reservation, due)
  redis.call('ZREMRANGEBYSCORE', set, '-inf', string.format('%.0f', now))
  redis.call('ZADD', set, string.format('%.0f', due), reservation)
  local last = redis.call('ZREVRANGE', set, 0, 0, 'WITHSCORES')
  expireAt(set, last[2])
end

-- storeReservation stores a reservation until it is due.
local function storeReservation(key, parts, due)
  redis.call('SET', key, parts, 'PXAT', string.format('%.0f', math.ceil(due / 1000) + shift))
end
