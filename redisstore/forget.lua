-- Deletes the override of a key of a dropped limit, with the row and its records, unless
-- the override is of a later version of the limit.
--
-- KEYS: the override, the row, the hash of its records. ARGV: the last version of the dropped limit.
-- Returns 1 if the override was deleted.
local text = call('GET', KEYS[1])
if not text then
  return {0}
end
local read, override = pcall(cjson.decode, text)
if read and type(override) == 'table' and (tonumber(override.version) or 0) > tonumber(ARGV[1]) then
  return {0}
end
call('DEL', KEYS[1], KEYS[2], KEYS[3])
return {1}
