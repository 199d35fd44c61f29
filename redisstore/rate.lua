-- Sets the rate of an adaptive limit, unless it has another revision than the one from
-- which it was computed, and begins a window.
--
-- KEYS: the rate, a hash. ARGV: the revision; version of the limit; its levels in
-- MessagePack: the one before the first change, and then time and level of each change;
-- the state as Go needs it, JSON; when the window begins, and its four sums; a channel, or
-- empty. Returns the new revision, which is later than all before it, or 0.
local call = redis.call
local revision = tonumber(string.match(call('HGET', KEYS[1], 'of') or '', '%d+$')) or 0
if revision ~= tonumber(ARGV[1]) then
  return {0}
end
revision = math.max(revision + 1, now)
if ARGV[6] ~= '' then
  call('PUBLISH', ARGV[6], '') -- first, because the user may have no right to it
end
call('HSET', KEYS[1], 'of', string.format('%s %d', ARGV[2], revision), 'levels', ARGV[3], 'state', ARGV[4], 'seen', ARGV[5])
return {revision}
