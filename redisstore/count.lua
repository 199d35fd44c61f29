-- Adds to the usage of keys in an hour.
--
-- KEYS: the hash of the hour. ARGV: ms until the hash expires, number of lines; for each
-- line its key, allowed, refused and tokens.
for i = 3, 2 + 4 * ARGV[2], 4 do
  for at, name in ipairs({'a', 'r', 't'}) do
    if ARGV[i + at] ~= '0' then
      call('HINCRBY', KEYS[1], name .. ARGV[i], ARGV[i + at])
    end
  end
end
call('PEXPIRE', KEYS[1], ARGV[1])
return {}
