-- A log in a sorted set, as commonly implemented.
--
-- KEYS[1]  the log
-- ARGV[1]  limit            ARGV[2]  now, in milliseconds
-- ARGV[3]  a window ago     ARGV[4]  a unique member
-- ARGV[5]  seconds until it expires
-- Returns  {1 or 0, remaining}
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[3])
local room = ARGV[1] - redis.call('ZCARD', KEYS[1])
if room < 1 then
  return {0, 0}
end
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[4])
redis.call('EXPIRE', KEYS[1], ARGV[5])
return {1, room - 1}
