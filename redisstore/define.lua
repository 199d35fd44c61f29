-- Changes one limit, unless it was changed in the meantime, and notifies all
-- programs.
--
-- KEYS: the hash of limits; its field '' is the revision. ARGV: name, old value of the field
-- (empty: none), new value, channel. Returns the new revision and the one before; only -1 if
-- somebody else has changed the limit. The revision is at least the time, so that a server
-- that has lost changes never has the same revision twice.
if (call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then
  return {-1}
end
local before = tonumber(call('HGET', KEYS[1], '') or 0) or 0
local revision = max(before + 1, now)
call('PUBLISH', ARGV[4], ARGV[1]) -- first, because the user may have no right to it; nobody reads before the script has ended
call('HSET', KEYS[1], ARGV[1], ARGV[3], '', format('%d', revision))
return {revision, before}
