-- keep adds a reservation to the set of a row's reservations, which lives until
-- the last of them is due.
local function keep(set, reservation, due)
  redis.call('ZREMRANGEBYSCORE', set, '-inf', string.format('%.0f', now))
  redis.call('ZADD', set, string.format('%.0f', due), reservation)
  local last = redis.call('ZREVRANGE', set, 0, 0, 'WITHSCORES')
  redis.call('PEXPIREAT', set, string.format('%.0f', math.ceil(last[2] / 1000)))
end

-- hold stores a reservation until it is due.
local function hold(key, parts, due)
  redis.call('SET', key, parts, 'PXAT', string.format('%.0f', math.ceil(due / 1000)))
end
