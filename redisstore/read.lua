-- Reads keys for a decision in Go: see snapshot.lua. ARGV[4]: for how long to lock
-- the rows, in ms; 0: no lock. A lock asks others to wait, so that the caller's
-- write succeeds; correctness needs no lock. Scripts that decide in one call leave
-- alone a row that ends with a *, so that they wait too. If memory is full,
-- nothing is locked: the decision may need no memory.
--
-- Returns now, a digest of what was read, and the values; or only now, if another
-- caller has a lock.
if isLocked() then
  return {now}
end
if ARGV[4] ~= '0' then
  for i = 1, n do
    local locked = redis.pcall('SET', KEYS[i], token, 'PX', ARGV[4])
    if locked.err then -- the first one, because no write after another is refused
      break
    end
    local row = call('GET', KEYS[n + i])
    if row and string.sub(row, -2) ~= ' *' then
      call('SET', KEYS[n + i], row .. ' *', 'KEEPTTL')
    end
  end
end
local values = readAll()
return {now, digestOf(values), values}
