-- Makes a row live at least until a time (ms). KEYS: row. ARGV: time.
local left = redis.call('PTTL', KEYS[1])
if left >= 0 and now / 1000 + left < tonumber(ARGV[1]) then
  redis.call('PEXPIREAT', KEYS[1], ARGV[1])
  return {1}
end
return {0}
