-- Removes the caller's locks. KEYS: locks. ARGV: token.
for i = 1, #KEYS do
  if redis.call('GET', KEYS[i]) == ARGV[1] then
    redis.call('DEL', KEYS[i])
  end
end
return {1}
