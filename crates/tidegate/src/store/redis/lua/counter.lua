-- Fast path: requests on sliding-counters under one limit. Each key is decided separately.
--
-- KEYS     the keys of the states, all different
-- ARGV     1 window in microseconds, limit, radix and, unless the server's time is used, the time
--            in microseconds
--          2 for every key the units of each request and the number of requests; omitted if
--            every key has one request for one unit
--          (numbers are doubles, which struct.unpack reads fastest)
-- returns  an array of the microseconds since the start of the window and, for every key,
--          counts = previous * radix + current from before the charge, or -1 if the state has
--          another format and was not changed. For a single key, where it is exact, the integer
--          counts * window + elapsed instead of the array
--
-- A state is the integer (index of the window * radix + previous) * radix + current, so a charge
-- is an addition. Commands are the largest cost of this script, then arguments, then tables. So
-- it charges first, with one INCRBY that also returns the old counts. Usually the charge is
-- admitted and nothing else is needed. Otherwise the units that are not admitted are subtracted
-- again. Scripts are atomic, so no other client sees the intermediate value.
local limit = ARGV[1]
local window, count, radix = struct.unpack('<ddd', limit)
local is_given = #limit > 24
local now
if is_given then
  now = struct.unpack('<d', limit, 25)
else
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local elapsed = now % window
local square = radix * radix
local base = (now - elapsed) / window * square

-- Charges every key. A charge needs nothing else if it is admitted and the state is already in the
-- current window; all others are collected in `rare`. One unit of one key is a separate branch
-- without a loop or a table.
local more = ARGV[2]
local replies, rare
if not (more or KEYS[2]) then
  local value = redis.pcall('INCR', KEYS[1])
  if type(value) == 'number' then
    local counts = value - 1 - base
    -- The previous part of counts below the limit is 0, because the limit is below the radix.
    local stands = counts > 0 and counts < count
    if not stands and counts > 0 and counts < square then
      local current = counts % radix
      local room = count - current
      stands = room > 0 and (counts - current) / radix * (window - elapsed) < room * window
    end
    if stands and window <= 67108864 then
      return counts * window + elapsed
    elseif stands then
      return {elapsed, counts}
    end
  end
  replies, rare = {elapsed}, {{1, value, 1, 1}}
else
  replies, rare = {elapsed}, {}
  local place = 1
  for i = 1, #KEYS do
    local value, units, times, asked = nil, 1, 1, 1
    if more then
      units, times, place = struct.unpack('<dd', more, place)
      asked = units * times
      value = redis.pcall('INCRBY', KEYS[i], asked)
    else
      value = redis.pcall('INCR', KEYS[i])
    end
    local counts = type(value) == 'number' and value - asked - base or -1
    local current = counts % radix
    local room = count - current - asked + 1
    if counts > 0 and counts < square
      and room > 0 and (counts - current) / radix * (window - elapsed) < room * window then
      replies[i + 1] = counts
    else
      rare[#rare + 1] = {i, value, units, times}
    end
  end
  if not rare[1] then
    return replies
  end
end

-- Whether states of this window are exact in a double, which they are until the year 2112. Later
-- states have the format of sliding_counter.lua that begins with 0x83.
local exact = base + square <= 9007199254740992

-- Advances a state to the current window. Returns the previous and the current count, or nothing if
-- the value is not a state or its counts do not fit.
local function advance(before)
  if before < 0 or before >= 9007199254740992 then
    return
  end
  local counts = before % square
  local current = counts % radix
  local previous = (counts - current) / radix
  local from = (before - counts) / square
  local index = base / square
  if from > index then
    -- The clock stepped back: all units move to the current window.
    if current + previous < radix then
      return 0, current + previous
    end
  elseif from + 1 == index then
    return current, 0
  elseif from < index then
    return 0, 0
  else
    return previous, current
  end
end

-- Returns the units that are admitted, a multiple of `units`.
local function admitted(previous, current, units, times)
  local weighed = previous * (window - elapsed)
  local room = count - current - units * times
  if room >= 0 and weighed < (room + 1) * window then
    return units * times
  end
  local free = count - current - (weighed - weighed % window) / window
  return free < units and 0 or free - free % units
end

-- Undoes the charge of a key that request.lua has to decide, and deletes the key if the charge
-- created it.
local function leave(key, value, asked)
  if value == asked then
    redis.call('DEL', key)
  else
    redis.call('DECRBY', key, asked)
  end
  return -1
end

-- Decides a key whose value is `value` after all its requests were charged.
local function settle(key, value, units, times)
  local asked = units * times
  if not exact then
    return leave(key, value, asked)
  end
  local counts = value - asked - base
  if counts > 0 and counts < square then
    local current = counts % radix
    local taken = admitted((counts - current) / radix, current, units, times)
    if taken < asked then
      redis.call('DECRBY', key, asked - taken)
    end
    return counts
  end
  local previous, current = advance(value - asked)
  if not previous then
    return leave(key, value, asked)
  end
  local charged = current + admitted(previous, current, units, times)
  if previous + charged == 0 then
    redis.call('DEL', key)
  else
    -- Expires at the end of the next window, whatever is added in this one. It is kept for a
    -- millisecond longer, because Redis rounds down the time it starts from. A given time is
    -- unrelated to the clock by which Redis expires keys, so an hour is added.
    local left = 2 * window - elapsed
    redis.call('SET', key, base + previous * radix + charged,
      'PX', (left - left % 1000) / 1000 + (is_given and 3600000 or 2))
  end
  return previous * radix + current
end

for _, charge in ipairs(rare) do
  local i, value, units, times = unpack(charge)
  if type(value) == 'number' then
    replies[i + 1] = settle(KEYS[i], value, units, times)
  elseif string.find(value.err, '^WRONGTYPE') or string.find(value.err, '^ERR') then
    replies[i + 1] = -1
  else
    -- The error concerns the server, not a key. The first command fails with it already, so nothing
    -- was charged.
    return value
  end
end
return replies
