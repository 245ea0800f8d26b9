-- The two-counter estimate with one key per window, as commonly implemented.
--
-- KEYS[1]  this window's count      KEYS[2]  the previous window's
-- ARGV[1]  limit                    ARGV[2]  weight of the previous window, 0 to 1
-- ARGV[3]  cost                     ARGV[4]  seconds until a count expires
-- Returns  {1 or 0, remaining}
local current = tonumber(redis.call('GET', KEYS[1]) or 0)
local previous = tonumber(redis.call('GET', KEYS[2]) or 0)
local room = ARGV[1] - current - math.floor(previous * ARGV[2])
local cost = tonumber(ARGV[3])
if cost > room then
  return {0, room}
end
redis.call('INCRBY', KEYS[1], cost)
redis.call('EXPIRE', KEYS[1], ARGV[4])
return {1, room - cost}
