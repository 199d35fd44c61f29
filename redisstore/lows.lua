-- This file is about what the records of a row may still give back. Its twin in Go is
-- giveback.go.
--
-- A row is "used ts version". If a row has records that may give something back, "due till"
-- follow: before due no record ends, so that the row can be decided without them, and it is 0
-- while there are reservations; till is when the record of the last hold ends. Then come the
-- lows, but not for a concurrency limit: "mark next", and "number used" for each entry. A
-- script that takes lowers the last entry only; whoever reads the lows joins entries that do
-- not rise any more.
--
-- The hash of a row's records has a field for each record: the id of its reservation, or
-- a colon and the id of its hold, with "number mark slack units due ends unit expires". A
-- slack of -1 means that the record does not wait, and -2 that it was cancelled; its
-- units are then the withheld ones. The due of a hold is 0.
local match, min = string.match, math.min

-- push adds an entry to the lows. It joins earlier entries that are not below the new one.
local function push(r, number, low)
  local numbers, lows = r.numbers, r.lows
  local n = #lows
  while n > 0 and lows[n] >= low do
    number, numbers[n], lows[n] = numbers[n], nil, nil
    n = n - 1
  end
  numbers[n + 1], lows[n + 1] = number, low
end

-- open reads a row, and computes the used units at the present time. It returns nil if Go
-- must decide: the row is locked or of another version, has reservations, or has holds
-- that may have expired.
local function open(key, version, add)
  local text = call('GET', key)
  local r = {version = version, add = add, t = now, left = 0}
  if not text then
    return r
  end
  local used, ts, known, more = match(text, '^(%d+) (%d+) (%d+)(.*)$')
  if tonumber(known) ~= version then
    return nil
  end
  r.t = max(now, ts + 0)
  r.left = max(0, used - (r.t - ts) * add)
  if more == '' then
    return r
  end
  local due, till, lows = match(more, '^ (%d+) (%d+)([%d ]*)$')
  if not due or now >= due + 0 then
    return nil
  end
  if add > 0 and r.left == 0 then -- its records are those of a row that was full
    return r
  end
  r.due, r.till = due + 0, till + 0
  if lows ~= '' then
    local mark, next, entries = match(lows, '^ (%d+) (%d+)(.*)$')
    r.mark, r.next, r.numbers, r.lows = mark, next + 0, {}, {}
    for number, low in string.gmatch(entries, '(%d+) (%d+)') do
      push(r, number + 0, low + 0)
    end
    if r.left < r.lows[#r.lows] then
      push(r, nil, r.left)
    end
  end
  return r
end

-- rowText encodes a row.
local function rowText(r)
  if not r.due then
    return format('%d %d %d', r.left, r.t, r.version)
  end
  local list = {r.left, r.t, r.version, r.due, r.till, r.mark, r.next}
  for i = 1, r.lows and #r.lows or 0 do
    list[2 * i + 6], list[2 * i + 7] = r.numbers[i], r.lows[i]
  end
  return format('%d' .. string.rep(' %d', #list - 1), unpack(list))
end
