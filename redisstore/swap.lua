-- Writes a row that Go has converted, unless somebody has changed it meanwhile.
--
-- KEYS: the row; where its records are converted too, their hash. ARGV: what the
-- row was, what it becomes (empty: it is full), the instant at which it is full;
-- then of each field of the hash its name, what it was and what it becomes.
-- Returns 1 when written.
local row, held = KEYS[1], KEYS[2]
if redis.call('GET', row) ~= ARGV[1] then
  return {0}
end
local last = held and #ARGV - 2 or 0
for i = 4, last, 3 do
  if redis.call('HGET', held, ARGV[i]) ~= ARGV[i + 1] then
    return {0}
  end
end
redis.call('DEL', row) -- needs no memory, and what is written after it is not refused for want of it
if ARGV[2] ~= '' then
  put(row, ARGV[2], tonumber(ARGV[3]))
  for i = 4, last, 3 do
    redis.call('HSET', held, ARGV[i], ARGV[i + 2])
  end
end
return {1}
