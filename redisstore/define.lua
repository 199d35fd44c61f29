-- Changes one limit, unless it was changed in the meantime, and notifies all
-- programs.
--
-- KEYS: the hash of limits; its field '' is the revision. ARGV: name, old value of
-- the field (empty: none), new value, channel. Returns the new revision, or -1.
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then
  return {-1}
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
local revision = redis.call('HINCRBY', KEYS[1], '', 1)
redis.call('PUBLISH', ARGV[4], ARGV[1])
return {revision}
