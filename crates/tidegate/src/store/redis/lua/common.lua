-- What all scripts but the hot one begin with. (Put in front of them.)
--
-- A function costs a script something even if it is not called, because it is made anew in
-- every run. So what is rare is kept inside of what is not: see large.lua.

-- Doubles count exactly up to here: no count, time or product is larger.
local MOST = 9007199254740992
-- What a cost does.
local ASK, FORCE, REFUND = 0, 1, 2
-- The key at hand.
local key

-- The time, in microseconds; that of the server unless one is given.
local now = ARGV[1]
local is_given = now ~= ''
if is_given then
  now = now + 0
else
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- Stops before anything is written: what is there is not ours, and not to be decided on.
local function corrupt()
  error('tidegate: the value at ' .. key .. ' is not a state: delete it, or use another key_prefix', 0)
end

-- Keeps a state until it is as good as none; false is none.
local function write(name, before, after, expires)
  if not after or expires <= now then
    if before then
      redis.call('DEL', name)
    end
  elseif after ~= before then
    -- A millisecond more than it must be: Redis rounds the time it starts from down. A time
    -- that is given has nothing to do with the one Redis expires keys by.
    local left = expires - now
    if left > MOST then
      left = MOST
    end
    redis.call('SET', name, after, 'PX', (left - left % 1000) / 1000 + (is_given and 3600000 or 2))
  end
end
