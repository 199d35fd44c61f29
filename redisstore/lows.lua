-- This file is about what the records of a row may still give back. Its twin in Go is
-- giveback.go.
--
-- A row is "used ts version". If a row has records that may give something back, "due till"
-- follow: before due no record ends, so that the row can be decided without them, and it is 0
-- while there are reservations; till is when the record of the last hold ends. Then come the
-- lows, but not for a concurrency limit: "mark next", and "number used" for each entry. A script
-- that takes lowers the last entry only; whoever reads the lows joins entries that do not rise
-- any more.
--
-- The hash of a row's records has a field for each record: the id of its reservation, or
-- a colon and the id of its hold, with "number mark slack units due unit ends expires". A
-- slack of -1 means that the record does not wait, and -2 that it was cancelled; its
-- units are then the withheld ones. The due of a hold is 0.
local match = string.match

-- open reads a row. It returns the row's time, and the units used then; if the row has records,
-- also due, till, and the lows: mark, next and the entries, as texts. It returns nil if Go must
-- decide: the row is locked or of another version, has reservations, or has holds that may have
-- expired.
local function open(key, version, add)
  local text = call('GET', key)
  if not text then
    return now, 0
  end
  local used, ts, known, due, till, mark, next, list =
    match(text, '^(%d+) (%d+) (%d+) ?(%d*) ?(%d*) ?(%d*) ?(%d*)([%d ]*)$')
  if known ~= version then
    return nil
  end
  local left, t = used + 0, ts + 0
  if t < now then
    left, t = left - (now - t) * add, now
    if left < 0 then
      left = 0
    end
  end
  if due == '' then
    return t, left
  end
  if now >= due + 0 then
    return nil
  end
  if left == 0 and add > 0 then -- its records are those of a row that was full
    return t, 0
  end
  return t, left, due, till, mark, next, list
end

-- push adds an entry to lows. It joins earlier entries that are not below the new one.
local function push(numbers, lows, number, low)
  local n = #lows
  while n > 0 and lows[n] >= low do
    number, numbers[n], lows[n] = numbers[n], nil, nil
    n = n - 1
  end
  numbers[n + 1], lows[n + 1] = number, low
end

-- parse returns the numbers and lows of the entries in a text, for a row that uses left. The
-- numbers stay texts.
local function parse(text, left)
  local numbers, lows = {}, {}
  for number, low in string.gmatch(text, '(%d+) (%d+)') do
    push(numbers, lows, number, low + 0)
  end
  if left < lows[#lows] then
    push(numbers, lows, nil, left)
  end
  return numbers, lows
end

-- textOf returns the part of a row after till.
local function textOf(mark, next, numbers, lows)
  local words = {'', mark, next}
  for i = 1, #lows do
    words[2 * i + 2], words[2 * i + 3] = numbers[i], format('%d', lows[i])
  end
  return table.concat(words, ' ')
end
