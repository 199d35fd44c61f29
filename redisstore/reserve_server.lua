-- outlive lets a key live until an instant at least: the set and the hash of a
-- row's reservations, until the last of them is due.
local function outlive(key, till)
  redis.call('PEXPIREAT', key, string.format('%.0f', math.ceil(till / 1000)))
end

-- keep adds a reservation to the set of a row's reservations.
local function keep(set, reservation, due)
  redis.call('ZREMRANGEBYSCORE', set, '-inf', string.format('%.0f', now))
  redis.call('ZADD', set, string.format('%.0f', due), reservation)
  local last = redis.call('ZREVRANGE', set, 0, 0, 'WITHSCORES')
  outlive(set, last[2])
end

-- hold stores a reservation until it is due.
local function hold(key, parts, due)
  redis.call('SET', key, parts, 'PXAT', string.format('%.0f', math.ceil(due / 1000)))
end
