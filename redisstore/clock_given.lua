-- For tests: the time is the last argument. Keys expire by the server's clock, so their
-- expiry is made later by shift, in ms, and the tests delete them when it is time.
local clock = {0, ARGV[#ARGV]}
local now, shift, real = tonumber(clock[2]), 2 ^ 42, redis.call('TIME')
real = real[1] * 1000000 + real[2] - real[2] % 1000
