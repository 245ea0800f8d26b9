-- Gives a permit back, or renews it.
--
-- KEYS     the states it may be held in
-- ARGV     1 the time in microseconds, or '' for the server's
--          2 the permit's number, 3 the lease to renew it for, or '' to give it back
-- returns  1 if it was held, else 0
local number, lease = ARGV[2] + 0, ARGV[3]
for _, name in ipairs(KEYS) do
  key = name
  local raw = redis.call('GET', name)
  if raw then
    local held = permits(raw)
    held.advance()
    local found
    if lease == '' then
      found = held.release(number)
    else
      found = held.renew(number, lease + 0)
    end
    write(name, raw, held.pack(), held.last_ends())
    if found then
      return 1
    end
  end
end
return 0
