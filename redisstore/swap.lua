-- Writes a row that Go has converted, unless somebody has changed it meanwhile.
--
-- KEYS: the row. ARGV: what it was, used (0: it is full), ts, version, and the
-- instant at which it is full. Returns 1 when written.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return {0}
end
redis.call('DEL', KEYS[1]) -- needs no memory, and what is written after it is not refused for want of it
if ARGV[2] ~= '0' then
  put(KEYS[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5]))
end
return {1}
