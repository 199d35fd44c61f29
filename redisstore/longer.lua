-- longer returns the time until which a key that must live until a given time should live, or nil
-- if it already lives longer. PTTL may be up to a second too early, because the server may stop
-- between TIME and PTTL: setting a time that is too early would shorten the key's life.
local function longer(key, till)
  local left = call('PTTL', key)
  local stays = real + 1000 * (left - shift) + 1000000
  if left >= 0 and till >= stays - 1001000 then
    return math.max(till, stays)
  end
end
