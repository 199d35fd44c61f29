-- Writes the decision made in Go, unless one of the keys has changed since read.lua read
-- them, and removes the caller's locks. A row lives for at least two seconds: within these
-- a row that was missing cannot have been charged and have expired again.
--
-- KEYS and the first arguments as in snapshot.lua. ARGV[4]: the digest of read.lua;
-- ARGV[5]: the commands as JSON, each a list: its name, the number of its key among
-- those that are read, from 1, and its arguments, or nothing to remove the locks only;
-- ARGV[6]: the time of read.lua. Returns 1 if it has written.
local commands = {}
if ARGV[5] ~= '' then
  if isLocked() or now - ARGV[6] >= 2000000 or digestOf(readAll()) ~= ARGV[4] then
    return {0}
  end
  commands = cjson.decode(ARGV[5])
end
for _, c in ipairs(commands) do
  c[2] = KEYS[n + c[2]]
  call(unpack(c))
end
for i = 1, n do
  if call('GET', KEYS[i]) == token then
    call('DEL', KEYS[i])
    local row = call('GET', KEYS[n + i])
    if row and string.sub(row, -2) == ' *' then
      call('SET', KEYS[n + i], string.sub(row, 1, -3), 'KEEPTTL')
    end
  end
end
return {1}
