-- Shared by all scripts but rights.lua; script.rs puts it in front of them.
--
-- KEYS     not read here
-- ARGV     1 the time in microseconds, or '' for the server's time
--
-- A function costs time even if it is not called, because every run of a script creates it again.
-- Variables and constants outside of it that it uses add to that. So functions that few calls need
-- are nested in one function, with their constants, and created on demand.

local redis_call, unpack_numbers, pack_numbers = redis.call, struct.unpack, struct.pack
-- 2^53: doubles are exact up to it, and no count, time or product is larger.
local MOST = 9007199254740992

-- The current key, for the message of corrupt().
local key

-- The time in microseconds.
local now = ARGV[1]
local is_given = now ~= ''
if is_given then
  now = now + 0
else
  local time = redis_call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- Raises an error for a value that is not a state of tidegate. It is called before the first write
-- of an entry.
local function corrupt()
  error('tidegate: the value at ' .. key .. ' is not a state: delete it, or use another key_prefix', 0)
end

-- The last number of milliseconds that was written as an expiry, and its text. Redis takes long to
-- format numbers, and most states of a call expire together.
local last_ms, last_ms_text

-- Stores a state until it expires, or deletes it if `after` is false (an empty state). `before` is
-- the stored value, and `expired` the time until which that is kept, if it is known. Without a name
-- it writes nothing, and returns the bytes (false if the state is empty) and their expiry.
local function write(name, before, after, expires, expired)
  if not name then
    if not after or expires <= now then
      return false, 0
    end
    return type(after) == 'number' and string.format('%.0f', after) or after, expires
  end
  if not after or expires <= now then
    if before then
      redis_call('DEL', name)
    end
  elseif after == before then
    return
  elseif before and expires == expired then
    redis_call('SET', name, after, 'KEEPTTL')
  else
    -- One millisecond longer than needed, because Redis rounds down the time it starts from. A
    -- given time is unrelated to the clock by which Redis expires keys, so an hour is added.
    local left = expires - now
    if left > MOST then
      left = MOST
    end
    local ms = (left - left % 1000) / 1000 + (is_given and 3600000 or 2)
    if ms ~= last_ms then
      last_ms, last_ms_text = ms, tostring(ms)
    end
    redis_call('SET', name, after, 'PX', last_ms_text)
  end
end
