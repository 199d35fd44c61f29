-- With a test's clock keys expire later by shift, in ms.
local call, format, ceil = redis.call, string.format, math.ceil

-- expiry returns the time in ms at which Redis should expire a key that is needed until a time in
-- µs. A key lives for at least two seconds: by then every program knows of a change to a slower
-- version, and the expiry of rows written before was lengthened.
local function expiry(till)
  if till < now + 2000000 then
    till = now + 2000000
  end
  return format('%d', ceil(till / 1000) + shift)
end
