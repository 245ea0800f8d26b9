-- Shared by request.lua and permit.lua; script.rs puts it in front of them.
--
-- KEYS     not read here
-- ARGV     1 the time in microseconds, or '' for the server's time
--
-- A function costs time even if it is not called, because every run of a script creates it again.
-- So rarely used functions are nested in a function that creates them on demand: see large.lua.

-- 2^53: doubles are exact up to it, and no count, time or product is larger.
local MOST = 9007199254740992
-- The kinds of cost.
local ASK, FORCE, REFUND = 0, 1, 2

-- The numbers of the algorithms, as in script.rs.
local LOG, WINDOW, COUNTER, FIXED, BUCKET = 0, 1, 2, 3, 4
-- The current key, for the message of corrupt().
local key

-- The time in microseconds.
local now = ARGV[1]
local is_given = now ~= ''
if is_given then
  now = now + 0
else
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- Raises an error for a value that is not a state of tidegate. It is called before the first write.
local function corrupt()
  error('tidegate: the value at ' .. key .. ' is not a state: delete it, or use another key_prefix', 0)
end

-- Stores a state until it expires, or deletes it if `after` is false (an empty state).
local function write(name, before, after, expires)
  if not after or expires <= now then
    if before then
      redis.call('DEL', name)
    end
  elseif after ~= before then
    -- One millisecond longer than needed, because Redis rounds down the time it starts from. A
    -- given time is unrelated to the clock by which Redis expires keys, so an hour is added.
    local left = expires - now
    if left > MOST then
      left = MOST
    end
    redis.call('SET', name, after, 'PX', (left - left % 1000) / 1000 + (is_given and 3600000 or 2))
  end
end
