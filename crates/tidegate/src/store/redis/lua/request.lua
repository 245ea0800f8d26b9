-- Decides a request: all its states are charged, or none.
--
-- KEYS     the states, all different; then the idempotency id's, if there is one
-- ARGV     1 the time in microseconds, or '' for the server's
--          2 the permit, mode (a byte: 0 decide, 1 dry, 2 undo), and for every state:
--            algorithm, kind of cost, whether only watched (bytes);
--            units, window, count, capacity, cap, tick, ticks, extra
--          3 what is asked for under the id, 4 how long it is remembered
-- returns  a byte (0 denied, 1 admitted, 2 the id was used for something else), the time, and
--          three numbers for every state; see the algorithm's file
--          (numbers have 8 bytes, lowest first)
--
-- Nothing is written before everything has been read and decided: an error leaves all as it was.
local plan = ARGV[2]
local permit, mode, place = struct.unpack('<I8B', plan)
local DECIDE, UNDO = 0, 2
local asked = ARGV[3]
local states = asked and #KEYS - 1 or #KEYS
local id = asked and KEYS[#KEYS]

-- An admitted answer is given again, word for word, for as long as it is remembered.
local remembered = id and mode == DECIDE and read(id)
if remembered then
  if #remembered < 17 or string.byte(remembered) ~= 0x87 then
    corrupt()
  end
  local since, period, length, start = struct.unpack('<I7I7I2', remembered, 2)
  if since > now then
    -- The clock stepped back: it counts from now on.
    since = now
    local again = struct.pack('<BI7I7I2', 0x87, since, period, length)
    write(id, remembered, again .. string.sub(remembered, start), since + period)
  end
  if since + period > now then
    if string.sub(remembered, start, start + length - 1) ~= asked then
      return struct.pack('<BI8', 2, now)
    end
    return string.sub(remembered, start + length)
  end
end

local opened = {}
local admitted = mode ~= 1
for i = 1, states do
  local want = {permit = permit}
  local algorithm, observed
  algorithm, want.kind, observed, want.units, want.window, want.count, want.capacity,
    want.cap, want.tick, want.ticks, want.extra, place = struct.unpack('<BBBI8I8I8I8I8I8I8I8', plan, place)
  -- A peek asks as one unit would.
  want.least = math.max(want.units, 1)
  local raw = read(KEYS[i])
  local state = {raw = raw}
  local open = algorithm == 0 and sliding_log
    or algorithm == 1 and sliding_buckets
    or algorithm == 2 and sliding_counter
    or algorithm == 3 and fixed_window
    or algorithm == 4 and token_bucket
    or concurrency
  state.admits, state.settle, state.a, state.b, state.c = open(raw, want)
  if want.kind ~= ASK then
    state.admits = true
  end
  if observed == 0 and not state.admits then
    admitted = false
  end
  opened[i] = state
end

local reply = {struct.pack('<BI8', admitted and 1 or 0, now)}
for i, state in ipairs(opened) do
  key = KEYS[i]
  local after, expires, a, b = state.settle(admitted and state.admits)
  state.after, state.expires = after, expires
  reply[i + 1] = struct.pack('<I8I8I8', a or state.a, b or state.b, state.c)
end
reply = table.concat(reply)

if mode ~= 1 then
  for i, state in ipairs(opened) do
    write(KEYS[i], state.raw, state.after, state.expires)
  end
  if id and mode == UNDO then
    redis.call('DEL', id)
  elseif id and admitted then
    local period = ARGV[4] + 0
    local record = struct.pack('<BI7I7I2', 0x87, now, period, #asked) .. asked .. reply
    write(id, remembered, record, now + period)
  elseif remembered then
    -- It was remembered for long enough.
    redis.call('DEL', id)
  end
end
return reply
