-- Asks of sliding-counters under one limit, each key decided on its own: the hot path.
--
-- KEYS     the states, all different
-- ARGV     1 window in microseconds, 2 limit, 3 radix
--          and then, unless every key is asked for one unit once:
--          4 the time in microseconds, or '' for the server's
--          3+2i, 4+2i what each ask of key i is for, and how many there are
-- returns  the time, then the state of every key before; -1 for one that is in another
--          form and was left as it is. Numbers of 8 bytes for one key, else an array
--
-- A state is an integer, (window's index * radix + previous) * radix + current, so
-- charging is adding. Commands cost more than all else here. So the charge comes first
-- and says what was there; mostly it stands, and that was the only command. If not
-- all of it was admitted, the rest is taken back. Nobody sees it in between.
local window, count, radix = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0
local square = radix * radix
local now = ARGV[4]
-- A millisecond more than it must be: Redis rounds the time it starts from down.
local spare_ms = 2
if now and now ~= '' then
  -- A time that is given has nothing to do with the one Redis expires keys by.
  now, spare_ms = now + 0, 3600000
else
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local elapsed = now % window
local index = (now - elapsed) / window
local base = index * square
-- The last state a double counts exactly; 2112 is the year.
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
  if from > index then
    -- The clock stepped back: all that was counted is counted here and now.
    current = current + previous
    if current < radix then
      return 0, current
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
  local room = count - current - units * times
  if room >= 0 and previous * (window - elapsed) < (room + 1) * window then
    return units * times
  elseif times == 1 then
    return 0
  end
  local product = previous * (window - elapsed)
  local free = count - current - (product - product % window) / window
  return free < units and 0 or free - free % units
end

-- Decides one key and returns its state before; a second value is an error that
-- says nothing about the key and befalls the first command already.
local function ask(key, units, times)
  local asked = units * times
  local value = redis.pcall('INCRBY', key, asked)
  if type(value) ~= 'number' then
    local code = string.match(value.err, '^%u+')
    if code == 'WRONGTYPE' or code == 'ERR' then
      return -1
    end
    return nil, value
  end
  local before = value - asked
  local counts = before - base
  if counts > 0 and counts < square then
    local current = counts % radix
    local taken = admitted((counts - current) / radix, current, units, times)
    if taken < asked then
      redis.call('DECRBY', key, asked - taken)
    end
    return before
  end
  local previous, current = advance(before)
  if not previous then
    redis.call('DECRBY', key, asked)
    return -1
  end
  current = current + admitted(previous, current, units, times)
  if previous + current == 0 then
    redis.call('DEL', key)
  else
    -- Kept until the end of the next window, whatever is added in this one.
    local left = 2 * window - elapsed
    local value = base + previous * radix + current
    redis.call('SET', key, value, 'PX', (left - left % 1000) / 1000 + spare_ms)
  end
  return before
end

local replies = {now}
for i = 1, #KEYS do
  local before, failure = -1, nil
  if exact then
    before, failure = ask(KEYS[i], (ARGV[3 + 2 * i] or 1) + 0, (ARGV[4 + 2 * i] or 1) + 0)
  end
  if failure then
    return failure
  end
  replies[i + 1] = before
end
if #KEYS == 1 then
  return struct.pack('<i8i8', now, replies[2])
end
return replies
