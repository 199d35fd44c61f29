-- Decides any group at one instant, all or nothing. Go twin: Group.Decide; Go
-- makes the answers from the rows that this returns.
--
-- KEYS: n rows; with a reservation, a reset or a row that has records, then the n
-- sets of their reservations and the n hashes of their records; where it is kept
-- here, last the reservation's own key.
-- ARGV: n, reservation, what it holds of each op, a line each, and nothing; for each op
--   kind: t take, check, reserve; u take up to; c charge; r refund; x reset; n never
--   units: of the cost; of u the tokens
--   room: what may be used; of u the units in a token; of c where used stops growing
--   cap, every, origin (of a calendar the present window's start), add, version
--   flags: w charges, s shadow mode, d may be delayed
--   most: the longest delay, or empty
--   of a calendar: the present window's end, the longest window, and boundaries:
--   a window's start and end, the number of the first boundary counted from
--   there, and the instants
-- Returns what, now, and
--   0: decided; whether allowed, and each row's used, ts and version as found
--      (0 0 0: none), and whether it has a list
--   1: a row needs Go first; as 0, and nothing was done
--   2: now is in another window than the one given
--   3: a boundary is needed that was not given; the number of the op, the number
--      of the boundary counted from the window of an instant, and that instant
--   4: a row that would be written has a list, and its keys were not given
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local n, reservation = tonumber(ARGV[1]), ARGV[2]
local rows = {}
for i = 1, n do
  rows[i] = redis.call('GET', KEYS[i])
end
local found, ops, ready, listed = {}, {}, true, #KEYS > 2 * n
local allowed, due, reserved = true, 0, false

for i = 1, n do
  local a = 5 + (i - 1) * 13
  local op = {
    kind = ARGV[a], units = tonumber(ARGV[a + 1]), room = tonumber(ARGV[a + 2]), cap = tonumber(ARGV[a + 3]),
    every = tonumber(ARGV[a + 4]), origin = tonumber(ARGV[a + 5]), add = tonumber(ARGV[a + 6]), version = ARGV[a + 7],
    writes = string.find(ARGV[a + 8], 'w', 1, true), shadow = string.find(ARGV[a + 8], 's', 1, true),
    delays = string.find(ARGV[a + 8], 'd', 1, true), most = tonumber(ARGV[a + 9]),
    ends = tonumber(ARGV[a + 10]), longest = tonumber(ARGV[a + 11]), bounds = ARGV[a + 12],
  }
  ops[i] = op
  local used, ts, version, has = 0, 0, op.version, ''
  if rows[i] then
    has, used, ts, version = string.match(rows[i], '^(0?)(%d+) (-?%d+) (%d+)$')
    used, ts = tonumber(used) or 0, tonumber(ts) or 0
    found[4 * i - 3], found[4 * i - 2], found[4 * i - 1] = used, ts, tonumber(version) or -1
  else
    found[4 * i - 3], found[4 * i - 2], found[4 * i - 1] = 0, 0, 0
  end
  op.has = has == '0'
  found[4 * i] = op.has and 1 or 0
  if op.every == 0 and (now < op.origin or now >= op.ends) then
    return {2, now}
  end
  if version ~= op.version or op.every == 0 and used > 0 and ts < op.origin then
    ready = false
  else
    local t = {{later "now" "ts"}}
    if used > 0 then
      local ticks = 0 -- of a calendar: t is in the window given
      if op.every > 0 then
        {{statements 8 "ticksUpTo" "ts" "t" "op.origin" "op.every" "ticks"}}
      end
      {{statements 6 "leftAfter" "used" "ticks" "op.add" unbounded "used"}}
    end
    op.t, op.before, op.after, op.took = t, used, used, false
  end
end
if not ready then
  local reply = {1, now, 0}
  for i = 1, 4 * n do
    reply[3 + i] = found[i]
  end
  return reply
end

for i = 1, n do
  local op, ok = ops[i], true
  local delay = 0
  if op.kind == 't' then
    ok = {{fits "op.before" "op.units" "op.room"}}
    if ok and op.writes then
      op.after, op.took = {{added "op.before" "op.units"}}, op.units > 0
    end
    local over = {{excess "op.before" "op.units" "op.cap"}}
    if ok and op.delays and over > 0 then
      if op.every > 0 then
        {{statements 8 "wait" "over" "op.t" "now" "op.origin" "op.every" "op.add" "delay"}}
      else
        local ticks, list = {{ticksFor "over" "op.add"}}, {}
        for b in string.gmatch(op.bounds, '%d+') do
          list[#list + 1] = tonumber(b)
        end
        local at = ticks - list[3] + 4
        if op.t < list[1] or op.t >= list[2] or at < 4 or at > #list then
          return {3, now, i - 1, ticks, op.t}
        end
        delay = list[at] - now
      end
      if op.most and delay > op.most then
        ok, op.after, op.took, delay = false, op.before, false, 0
      end
    end
  elseif op.kind == 'u' then
    ok = {{fits "op.before" "op.room" "op.cap"}}
    if ok then
      op.after = op.before + {{pieces "op.before" "op.room" "op.cap" "op.units"}} * op.room
    end
  elseif op.kind == 'c' then
    op.after = {{charged "op.before" "op.units" "op.room"}}
    op.clipped = {{clipped "op.before" "op.units" "op.after"}}
  elseif op.kind == 'r' then
    op.after = {{refunded "op.before" "op.units"}}
  elseif op.kind == 'x' then
    op.after = 0
  else
    ok = false
  end
  if not ok and not op.shadow then
    allowed = false
  end
  if delay > 0 then
    {{statements 4 "later" "due" "delay" "due"}}
    reserved = reserved or op.took
  end
  op.delay, op.written = delay, op.after ~= op.before or op.clipped and op.has
end

-- record notes what a reservation took of a row, which may have a list.
local function record(op, l, set, held)
  local at = {{dueIn "now" "due"}}
  local ends = string.format('%.0f', at)
  redis.call('ZADD', set, ends, reservation) -- first: it is refused where memory is full
  if not l then
    l = newList(reservation)
    redis.call('DEL', held)
  end
  local r = {number = l.next, mark = l.mark, slack = -1, units = op.units, due = {{dueIn "now" "op.delay"}}, ends = at}
  if op.delay > 0 then
    r.slack = {{slackOf "op.units" "op.cap"}}
    if {{isNone "r.slack"}} then
      l.zero = r.number
    end
    if {{no (dueBy "r.ends" "r.due")}} then
      redis.call('ZADD', set, string.format('%.0f', r.due), '~' .. reservation)
    end
  end
  append(l, op.after)
  l.till = {{later "l.till" "r.ends"}}
  redis.call('HSET', held, reservation, recordText(r))
  keep(set, reservation, at)
  return l
end

-- lists brings the list of a row up to date for a write, and returns what is to
-- stand before the row.
local function lists(op, set, held)
  local l = op.has and readList(held) or nil
  if l then
    settle(l, set, held)
    if {{dueBy "l.till" "now"}} or {{isNone "op.before"}} then
      l = nil
      redis.call('DEL', held)
    else
      touch(l, op.before)
      if op.clipped then
        l.numbers, l.lows = {l.numbers[1]}, {0}
      end
    end
  end
  if reserved and op.took then
    l = record(op, l, set, held)
  end
  if not l then
    return ''
  end
  redis.call('HSET', held, '', listText(l))
  outlive(held, l.till)
  return '0'
end

if allowed and not listed then
  for i = 1, n do
    if ops[i].has and ops[i].written then
      return {4, now}
    end
  end
end
if allowed then
  for i = 1, n do
    local op = ops[i]
    if op.kind == 'x' then
      redis.call('DEL', KEYS[i], KEYS[n + i], KEYS[2 * n + i])
    elseif op.written then
      if {{isNone "op.after"}} then
        redis.call('DEL', KEYS[i])
        if op.has then
          redis.call('DEL', KEYS[2 * n + i])
        end
      else
        local ticks, full = {{ticksFor "op.after" "op.add"}}, 0
        if op.every > 0 then
          {{statements 10 "dueAt" "op.t" "ticks" "op.origin" "op.every" "full"}}
        else
          full = op.ends
          if op.t >= full then
            full = op.t + op.longest
          end
          full = full + (ticks - 1) * op.longest
        end
        if op.kind == 'r' then
          redis.call('DEL', KEYS[i]) -- needs no memory, and what is written after it is not refused for want of it
        end
        local before = listed and lists(op, KEYS[n + i], KEYS[2 * n + i]) or ''
        put(KEYS[i], string.format('%s%d %d %s', before, op.after, op.t, op.version), full)
      end
    end
  end
  if reserved and #KEYS > 3 * n then
    local parts, i = {}, 0
    for part in string.gmatch(ARGV[3], '[^\n]+') do
      i = i + 1
      if ops[i].took then
        parts[#parts + 1] = part
      end
    end
    hold(KEYS[3 * n + 1], '[' .. table.concat(parts, ',') .. ']', now + due)
  end
end
local reply = {0, now, allowed and 1 or 0}
for i = 1, 4 * n do
  reply[3 + i] = found[i]
end
return reply
