-- Decides any group at one time, all or nothing. Go twin: Group.Decide; Go computes
-- the answers from the rows returned.
--
-- KEYS: n rows; if there is a reservation, a reset or a row with records, also the
-- n sets of their reservations and the n hashes of their records; without a
-- cluster, the key of the reservation and last those of adaptive rates.
-- ARGV: n, reservation, its parts (one line per op), and the number of keys of adaptive
-- rates; for each op
--  kind: t take, check, reserve; u take up to; c charge; r refund; x reset; n never
--  units: of the cost; for u the tokens
--  room: how many units may be used; for u the units of a token; for c where used stops growing
--  cap, every, origin (with a calendar the start of the current window), add, version
--  flags: w charges, s shadow mode, d may be delayed, a adaptive
--  most: the longest delay, or empty
--  with an adaptive rate: a time after all others, the revision of the rate that the caller knows, and its levels as rate.lua stores them. With keys of rates they are those of a limit that was never observed: one key for each such op, in order, has the levels that count
--  with a calendar: the end of the current window, the longest window, and boundaries: start and end of a window, the number of the first boundary after it, and the times
--  if an override decides, the time at which it ends; otherwise empty. The row then has to be there, and keeps its expiry
-- Returns a code, now, and
--  0: decided; whether allowed, and for each row used, ts and version as found (0 0 0: none), and whether it has a list; then of each adaptive rate with another revision the index of its op, the revision, and the number of levels and they themselves
--  1: Go must decide: a row has another version or window, or has holds or is locked, or its override has ended or ends before a reservation is due; nothing was done
--  2: now is in another window than the one given
--  3: a boundary was missing; index of the op, number of the boundary counted from the window of a time, and that time
--  4: a row to be written has a list, and its keys were not given
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local n, reservation, rates = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[4]) or 0
local rateKeys = #KEYS - rates -- before the first of them
local rows = {}
for i = 1, n do
  rows[i] = redis.call('GET', KEYS[i])
end
local found, ops, ready, listed = {}, {}, true, rateKeys > 2 * n
local allowed, due, reserved = true, 0, false
local moved = {} -- adaptive rates of which the caller knows another revision

-- levelsOf returns the levels of an adaptive rate: the one before the first change, and
-- then time and level of each change.
local function levelsOf(i, version, known, levels)
  levels = cmsgpack.unpack(levels)
  if rates == 0 then
    return levels
  end
  rateKeys = rateKeys + 1
  local revision = '0'
  local of, at = string.match(redis.call('HGET', KEYS[rateKeys], 'of') or '', '^(%d+) (%d+)$')
  if of == version then
    revision, levels = at, cmsgpack.unpack(redis.call('HGET', KEYS[rateKeys], 'levels'))
  end
  if revision ~= known then
    moved[#moved + 1], moved[#moved + 2], moved[#moved + 3] = i - 1, tonumber(revision), #levels
    for j = 1, #levels do
      moved[#moved + 1] = levels[j]
    end
  end
  return levels
end

-- ticksSince returns the ticks of an adaptive rate from a time to a later one. Go twin:
-- History.Tick.
local function ticksSince(levels, from, to)
  local ticks, i = 0, #levels - 1
  while i >= 2 and to > from do
    local at = max(levels[i], from)
    if at < to then
      ticks, to = ticks + (to - at) * levels[i + 1], at
    end
    i = i - 2
  end
  return ticks + (to - from) * levels[1]
end

-- tickAfter returns the time of a tick, counted from a time. Go twin: History.Boundary.
local function tickAfter(levels, from, ticks)
  local level = levels[1]
  for i = 2, #levels, 2 do
    local at = levels[i]
    if at > from then
      local passed = (at - from) * level
      if passed >= ticks then
        break
      end
      ticks, from = ticks - passed, at
    end
    level = levels[i + 1]
  end
  return from + ceil(ticks / level)
end

for i = 1, n do
  local a = 5 + (i - 1) * 14
  local op = {
    kind = ARGV[a], units = tonumber(ARGV[a + 1]), room = tonumber(ARGV[a + 2]), cap = tonumber(ARGV[a + 3]),
    every = tonumber(ARGV[a + 4]), origin = tonumber(ARGV[a + 5]), add = tonumber(ARGV[a + 6]), version = ARGV[a + 7],
    writes = string.find(ARGV[a + 8], 'w', 1, true), shadow = string.find(ARGV[a + 8], 's', 1, true),
    delays = string.find(ARGV[a + 8], 'd', 1, true), most = tonumber(ARGV[a + 9]),
    ends = tonumber(ARGV[a + 10]), longest = tonumber(ARGV[a + 11]), bounds = ARGV[a + 12],
    override = tonumber(ARGV[a + 13]),
  }
  if string.find(ARGV[a + 8], 'a', 1, true) then
    op.levels = levelsOf(i, op.version, ARGV[a + 11], op.bounds)
  end
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
  if version ~= op.version or op.every == 0 and used > 0 and ts < op.origin
    or rows[i] and string.sub(rows[i], 1, 2) == '00' or op.override and (not rows[i] or max(now, ts) >= op.override) then
    ready = false
  else
    local t = {{later "now" "ts"}}
    if used > 0 then
      local ticks = 0 -- with a calendar t is in the window given
      if op.every > 0 then
        {{statements 8 "ticksUpTo" "ts" "t" "op.origin" "op.every" "ticks"}}
      elseif op.levels then
        ticks = ticksSince(op.levels, ts, t)
      end
      {{statements 6 "leftAfter" "used" "ticks" "op.add" unbounded "used"}}
    end
    op.t, op.before, op.after, op.took = t, used, used, false
  end
end
if not ready then
  return {1, now}
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
      elseif op.levels then
        delay = tickAfter(op.levels, op.t, {{ticksFor "over" "op.add"}}) - now
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
      if op.override and now + delay >= op.override then
        return {1, now} -- after the end, the row refills by another rule
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
  if delay > 0 and op.took then
    {{statements 4 "later" "due" "delay" "due"}}
    reserved = true
  end
  op.delay, op.written = delay, op.after ~= op.before or op.clipped and op.has
end

-- addRecord stores what a reservation took from a row, which may have a list.
local function addRecord(op, l, set, records)
  local at = {{dueIn "now" "due"}}
  local ends = string.format('%.0f', at)
  redis.call('ZADD', set, ends, reservation) -- first, because it fails if memory is full
  if not l then
    l = newList(reservation, now)
    redis.call('DEL', records)
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
  redis.call('HSET', records, reservation, recordText(r))
  addReservation(set, reservation, at)
  return l
end

-- prepareList updates the list of a row before a write, and returns the prefix of
-- the row.
local function prepareList(op, set, records)
  local l = op.has and readList(records) or nil
  if l then
    resolveDue(l, set, records)
    if {{dueBy "l.till" "now"}} or {{isNone "op.before"}} then
      l = nil
      redis.call('DEL', records)
    else
      lowerLast(l, op.before)
      if op.clipped then
        l.numbers, l.lows = {l.numbers[1]}, {0}
      end
    end
  end
  if reserved and op.took then
    l = addRecord(op, l, set, records)
  end
  if not l then
    return ''
  end
  redis.call('HSET', records, '', listText(l))
  expireAt(records, l.till)
  return '0'
end

-- Records of holds stay longer than their row, whose key expires once the row is full. In
-- that case only Go can decide.
if allowed and listed then
  for i = 1, n do
    if ops[i].kind == 'x' or reserved and ops[i].took then
      local flat = redis.call('HGETALL', KEYS[2 * n + i])
      for j = 1, #flat, 2 do
        if string.byte(flat[j]) == 58 then
          return {1, now}
        end
      end
    end
  end
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
        elseif op.levels then
          full = op.t + ceil(ticks / op.levels[1]) -- however low the rate falls
        else
          full = op.ends
          if op.t >= full then
            full = op.t + op.longest
          end
          full = full + (ticks - 1) * op.longest
        end
        if op.kind == 'r' then
          redis.call('DEL', KEYS[i]) -- needs no memory; the writes after a first one are not refused for lack of memory
        end
        local before = listed and prepareList(op, KEYS[n + i], KEYS[2 * n + i]) or ''
        local row = string.format('%s%d %d %s', before, op.after, op.t, op.version)
        if op.override then
          redis.call('SET', KEYS[i], row, 'KEEPTTL')
        else
          put(KEYS[i], row, full)
        end
      end
    end
  end
  if reserved and #KEYS - rates > 3 * n then
    local parts, i = {}, 0
    for part in string.gmatch(ARGV[3], '[^\n]+') do
      i = i + 1
      if ops[i].took then
        parts[#parts + 1] = part
      end
    end
    storeReservation(KEYS[3 * n + 1], '[' .. table.concat(parts, ',') .. ']', now + due)
  end
end
local reply = {0, now, allowed and 1 or 0}
for i = 1, 4 * n do
  reply[3 + i] = found[i]
end
for i = 1, #moved do
  reply[#reply + 1] = moved[i]
end
return reply
