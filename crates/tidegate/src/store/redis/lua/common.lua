-- What all scripts but the hot one begin with. (Put in front of them.)

-- Doubles count exactly up to here: no count, time or product is larger.
local MOST = 9007199254740992
-- The largest log, about 300,000 entries: what Redis copies in a fraction of a millisecond.
local MAX_LOG_BYTES = 1048576
-- What a cost does.
local ASK, FORCE, REFUND = 0, 1, 2

-- The time, in microseconds; that of the server unless one is given.
local now = ARGV[1]
-- A millisecond more than it must be: Redis rounds the time it starts from down.
local spare_ms = 2
if now ~= '' then
  -- A time that is given has nothing to do with the one Redis expires keys by.
  now, spare_ms = now + 0, 3600000
else
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- The key at hand.
local key

-- Stops before anything is written: what is there is not ours, and not to be decided on.
local function corrupt()
  error('tidegate: the value at ' .. key .. ' is not a state: delete it, or use another key_prefix', 0)
end

-- Reads a state; false if there is none.
local function read(name)
  key = name
  return redis.call('GET', name)
end

-- Keeps a state until it is as good as none.
local function write(name, before, after, expires)
  if not after or expires <= now then
    if before then
      redis.call('DEL', name)
    end
  elseif after ~= before then
    -- An age beyond which nobody waits, so that it is a time Redis knows.
    local left = math.min(expires - now, MOST)
    redis.call('SET', name, after, 'PX', (left - left % 1000) / 1000 + spare_ms)
  end
end
