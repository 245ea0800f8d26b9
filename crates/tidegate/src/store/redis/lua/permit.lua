-- Releases a permit, or renews its lease, in the first state that holds it.
--
-- KEYS     the keys of the states that may hold it
-- ARGV     1 the time in microseconds, or '' for the server's time
--          2 the number of the permit
--          3 the new lease in microseconds, or '' to release the permit
-- returns  1 if the permit was held, else 0
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
