-- Makes a key live at least until a time (ms). KEYS: the key. ARGV: time. If the server
-- stops between TIME and PTTL, left is too little: so a second is added.
local left = redis.call('PTTL', KEYS[1])
if left >= 0 and real / 1000 + left - shift < tonumber(ARGV[1]) then
  redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', ARGV[1] + 1000 + shift))
  return {1}
end
return {0}
