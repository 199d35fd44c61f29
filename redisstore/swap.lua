-- Writes a row that was converted in Go, unless it was changed in the meantime.
--
-- KEYS: row; if its records are converted too, their hash. ARGV: old value of the
-- row, new value (empty: it is full), time at which it is full; then name, old
-- value and new value of each field of the hash. Returns 1 if written.
local row, records = KEYS[1], KEYS[2]
if redis.call('GET', row) ~= ARGV[1] then
  return {0}
end
local last = records and #ARGV - 2 or 0
for i = 4, last, 3 do
  if redis.call('HGET', records, ARGV[i]) ~= ARGV[i + 1] then
    return {0}
  end
end
redis.call('DEL', row) -- needs no memory; the writes after a first one are not refused for lack of memory
if ARGV[2] ~= '' then
  put(row, ARGV[2], tonumber(ARGV[3]))
  for i = 4, last, 3 do
    redis.call('HSET', records, ARGV[i], ARGV[i + 2])
  end
end
return {1}
