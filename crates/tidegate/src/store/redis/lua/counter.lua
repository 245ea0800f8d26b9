-- Asks of sliding-counters under one limit, each key decided on its own: the hot path.
--
-- KEYS     the states, all different
-- ARGV     1 window in microseconds, limit, radix; and the time in microseconds, unless it is
--            the server's
--          2 for every key what each ask is for, and how many there are; left out if all are
--            asked for one unit once
--          (numbers are doubles, which are read fastest)
-- returns  how far into its window the time is, and for every key previous * radix + current
--          as they were before the charge; -1 for a state that is in another form and was
--          left alone. An array; for one key counts * window + elapsed where that is exact
--
-- A state is an integer, (window's index * radix + previous) * radix + current, so
-- charging is adding. Commands cost more than all else here, then arguments, then tables.
-- So the charge comes first and says what was there; mostly it stands, and that was
-- all. If not all of it was admitted, the rest is taken back. Nobody sees it in between.
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

-- First the charges that stand: in the window a key was last asked in, with units to spare.
-- One unit of one key has a way of its own, without a loop or a table.
local more = ARGV[2]
local replies, rare
if not (more or KEYS[2]) then
  local value = redis.pcall('INCR', KEYS[1])
  if type(value) == 'number' then
    local counts = value - 1 - base
    -- Below the limit nothing is previous: the limit is below the radix.
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

-- Whether states of this window are exact in a double: until 2112. Later ones are kept
-- in the other form.
local exact = base + square <= 9007199254740992

-- A state of another window, brought into this one: previous and current count, or
-- nothing if it is none or would not fit.
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
    -- The clock stepped back: all that was counted is counted here and now.
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

-- How much of what is asked for is admitted.
local function admitted(previous, current, units, times)
  local weighed = previous * (window - elapsed)
  local room = count - current - units * times
  if room >= 0 and weighed < (room + 1) * window then
    return units * times
  end
  local free = count - current - (weighed - weighed % window) / window
  return free < units and 0 or free - free % units
end

-- Takes back what a key was charged that is not for this script; there may have been none.
local function leave(key, value, asked)
  if value == asked then
    redis.call('DEL', key)
  else
    redis.call('DECRBY', key, asked)
  end
  return -1
end

-- Decides a key that has been charged all it was asked for, and has `value` since.
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
    -- Kept until the end of the next window, whatever is added in this one; and a
    -- millisecond more, because Redis rounds the time it starts from down. A time that is
    -- given has nothing to do with the one Redis expires keys by.
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
    -- This says something of the server, not of a key: it befalls the first command
    -- already, and nothing was charged.
    return value
  end
end
return replies
