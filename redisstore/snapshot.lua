-- The keys that Go reads, decides on and writes: see table.go.
--
-- KEYS: n locks, one for each row; the keys to be read, first the n rows. ARGV[1]: n; ARGV[2]:
-- a letter for each key to be read: s for a string, h for a hash, f for the number of free
-- parts that have not expired, and the last score; ARGV[3]: the caller's token.
local n, kinds, token = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local readers = {
  s = function(key) return call('GET', key) end,
  h = function(key) return call('HGETALL', key) end,
  f = function(key)
    return {call('ZCOUNT', key, format('(%.0f', now), '+inf'), call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2] or '0'}
  end,
}

-- isLocked reports whether another caller has one of the locks.
local function isLocked()
  for i = 1, n do
    local by = call('GET', KEYS[i])
    if by and by ~= token then
      return true
    end
  end
  return false
end

local function readAll()
  local values = {}
  for i = 1, #kinds do
    values[i] = readers[string.sub(kinds, i, i)](KEYS[n + i])
  end
  return values
end

local function digestOf(values)
  return redis.sha1hex(cmsgpack.pack(values))
end
