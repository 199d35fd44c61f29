-- Adds an observation of an adaptive limit to the sums of the present window. If the
-- window is over, it adds nothing: the caller then sets the rate by rate.lua.
--
-- KEYS: the rate. ARGV: version of the limit; its window in µs; what was observed: calls,
-- slow ones, failed ones, and tokens taken. Returns a code, now, and
--  0: added; the revision of the rate
--  1: the window is over or there is none yet; the revision, when the window began, its four sums, and the state
--  2: the rate is of a later version of the limit
local call, most = redis.call, 1099511627776
local of, revision = string.match(call('HGET', KEYS[1], 'of') or '', '^(%d+) (%d+)$')
of, revision = tonumber(of) or 0, tonumber(revision) or 0
local version = tonumber(ARGV[1])
if of > version then
  return {2, now}
elseif of < version then
  return {1, now, revision, 0, 0, 0, 0, 0, ''}
end
local sums, i = {}, 0
for word in string.gmatch(call('HGET', KEYS[1], 'seen'), '%d+') do
  sums[i], i = tonumber(word), i + 1
end
local begun = sums[0]
if now < begun or now - begun >= tonumber(ARGV[2]) then
  return {1, now, revision, begun, sums[1], sums[2], sums[3], sums[4], call('HGET', KEYS[1], 'state')}
end
for j = 1, 4 do
  sums[j] = math.min(sums[j] + tonumber(ARGV[2 + j]), most)
end
call('HSET', KEYS[1], 'seen', string.format('%d %d %d %d %d', begun, sums[1], math.min(sums[2], sums[1]), math.min(sums[3], sums[1]), sums[4]))
return {0, now, revision}
