-- Takes of one limit, each row by itself: as many of its calls as fit are
-- charged. Go twin: Rule.Apply for VerbTake, Row.Decide. Every number is an
-- integer below 2^53; a quotient of two such numbers rounds to an integer only
-- when it is one, and a product that exceeds 2^53 stays above what it is
-- compared with, so that doubles decide exactly. Nothing in it may raise an error
-- once a row is written: the calls of the other rows would be charged and not be
-- told. So what is not a bucket is left alone like a row of another version.
--
-- KEYS: rows. ARGV: version, add, cap, every, origin (empty: each row has its
-- own); for each row units, calls and perhaps its origin.
-- Returns now, and for each row used and ts as they were found, or -1 and 0 for
-- a row of another version or with a list of records, or a key that holds
-- something else, which are left alone.
local version, add, cap, every, common = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local n, rows = #KEYS, nil
if n > 1 then
  rows = redis.call('MGET', unpack(KEYS))
end
local floor, ceil = math.floor, math.ceil
local reply, arg = {now}, 6
for i = 1, n do
  local units, calls, origin = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1]), common
  arg = arg + 2
  if not origin then
    origin, arg = tonumber(ARGV[arg]), arg + 1
  end
  local used, ts, known = 0, 0, version
  local row
  if rows then
    row = rows[i]
  else
    row = redis.call('GET', KEYS[1])
  end
  if row then
    used, ts, known = string.match(row, '^([1-9]%d*) (-?%d+) (%d+)$')
    used, ts = tonumber(used) or 0, tonumber(ts) or 0
  end
  if known ~= version or ts > 9007199254740992 then
    reply[2 * i], reply[2 * i + 1] = -1, 0
  else
    reply[2 * i], reply[2 * i + 1] = used, ts
    local t = now
    if ts > t then
      t = ts
    end
    if used > 0 then
      local back
      if every == 1 then
        back = (t - ts) * add
      else
        back = (floor((t - origin) / every) - floor((ts - origin) / every)) * add
      end
      if back >= used then
        used = 0
      else
        used = used - back
      end
    end
    local fit = floor((cap - used) / units)
    if fit > calls then
      fit = calls
    end
    if fit > 0 then
      used = used + fit * units
      local ticks, full = ceil(used / add), nil
      if every == 1 then
        full = t + ticks
      else
        full = origin + (floor((t - origin) / every) + ticks) * every
      end
      if not put(KEYS[i], string.format('%d %d %s', used, t, version), full, rows and not row) then
        reply[2 * i], reply[2 * i + 1] = -1, 0
      end
    end
  end
end
return reply
