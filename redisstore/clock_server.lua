-- The server's clock. Rows expire once they are full.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local shift, real = 0, now -- with a test's clock they are not
