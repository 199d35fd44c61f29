-- Lets a row live until an instant (ms) at least. KEYS: the row. ARGV: the instant.
local left = redis.call('PTTL', KEYS[1])
if left >= 0 and now / 1000 + left < tonumber(ARGV[1]) then
  redis.call('PEXPIREAT', KEYS[1], ARGV[1])
  return {1}
end
return {0}
