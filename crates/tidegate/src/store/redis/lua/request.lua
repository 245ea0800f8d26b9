-- Decides a request atomically: charges all of its states or none. The exception is a denial that
-- consumes the units that are left.
--
-- KEYS     the keys of the states, all different; then the key of the idempotency id, if any
-- ARGV     1 the time in microseconds, or '' for the server's time
--          2 the permit; the mode (a byte: 0 decide, 1 dry run, 2 undo, 3 deny and consume);
--            then for every state three bytes and eight numbers:
--              algorithm (the numbers of script.rs)
--              kind of cost: 0 ask, 1 force, 2 refund
--              role: 0 enforced; 1 observed, which never denies; 2 enforced, and a denial consumes
--                the units that are left, at most those requested
--              units, window, count, capacity, cap, tick, ticks, and the radix of a
--                sliding-counter (else 0)
--          3 the costs that are requested under the id (only with an id)
--          4 the time in microseconds for which the id is remembered (only with an id)
-- returns  the outcome (a byte: 0 denied, 1 admitted, 2 the id was used for another request,
--          3 denied, and units were consumed), the time, and, unless the outcome is 2, for every
--          state three numbers or, for a sliding-window, the length of its bytes (a byte) and its
--          bytes. The file of each algorithm describes them. Outcome 3 reports the states after
--          the charge
--
-- Numbers in ARGV[2] and in the reply are 8 bytes, little-endian. Nothing is written before all
-- states have been read and decided, so an error changes nothing.
local LIMIT = '<BBBI8I8I8I8I8I8I8I8'
local DECIDE, DRY, UNDO, CONSUME = 0, 1, 2, 3
local OBSERVED, CONSUMES = 1, 2
local DENIED, ADMITTED, ID_REUSED, CONSUMED = 0, 1, 2, 3
local plan, id_costs = ARGV[2], ARGV[3]
local permit, mode, limits = struct.unpack('<I8B', plan)
local states = id_costs and #KEYS - 1 or #KEYS

-- A reply that charged something is repeated byte for byte while its id is remembered.
local id, remembered
if id_costs then
  id = KEYS[#KEYS]
  key = id
  remembered = (mode == DECIDE or mode == CONSUME) and redis.call('GET', id)
end
if remembered then
  if #remembered < 17 or string.byte(remembered) ~= 0x87 then
    corrupt()
  end
  local since, period, length, start = struct.unpack('<I7I7I2', remembered, 2)
  if since > now then
    -- The clock stepped back: the period starts again.
    since = now
    local again = struct.pack('<BI7I7I2', 0x87, since, period, length)
    write(id, remembered, again .. string.sub(remembered, start), since + period)
  end
  if since + period > now then
    if string.sub(remembered, start, start + length - 1) ~= id_costs then
      return struct.pack('<BI8', ID_REUSED, now)
    end
    return string.sub(remembered, start + length)
  end
end

-- Reads every state, advances it to now, and computes its reply and whether it admits the cost.
local raws, first, second, third, admits, heads, settles = {}, {}, {}, {}, {}, {}, {}
local admitted = mode == DECIDE or mode == UNDO
local position = limits
for i = 1, states do
  key = KEYS[i]
  local raw = redis.call('GET', key)
  local algorithm, kind, role, units, window, count, capacity, cap, tick, ticks, extra
  algorithm, kind, role, units, window, count, capacity, cap, tick, ticks, extra, position =
    struct.unpack(LIMIT, plan, position)
  -- A peek is decided as a request for one unit.
  local least = units > 0 and units or 1
  local a, b, c, fits
  if algorithm == COUNTER then
    a, b = load_counter(raw, window, cap, extra)
    local elapsed = now % window
    local left = ticks - (elapsed - elapsed % tick) / tick
    local room = count - b - least + 1
    fits = room > 0 and a * left < room * ticks
  elseif algorithm == FIXED then
    a = load_fixed(raw, window, cap)
    fits = a + least <= count
  elseif algorithm == BUCKET then
    a = load_bucket(raw, window, count, tick, ticks)
    fits = least <= capacity and a <= (capacity - least) * ticks
  elseif algorithm == LOG and kind == ASK and role ~= CONSUMES then
    a, b, c, heads[i] = load_log(raw, window)
    fits = a and a + least <= count
    if not fits and (least > 1 or a ~= count) then
      -- More than the oldest entry must expire; only a walk over the log finds out when.
      a = nil
    end
  end
  if not a then
    local attempt = {
      kind = kind, units = units, least = least, window = window, count = count,
      capacity = capacity, cap = cap, extra = extra, permit = permit,
    }
    fits, settles[i], a, b, c = open_large(algorithm, raw, attempt)
  end
  fits = fits or kind ~= ASK
  admitted = admitted and (fits or role == OBSERVED)
  raws[i], first[i], second[i], third[i], admits[i] = raw, a, b or 0, c or 0, fits
end

-- Charges the states, if the request is admitted or consumes, and packs all of them.
local afters, expires, added, bytes = {}, {}, {}, {}
local consumed = false
position = limits
for i = 1, states do
  local algorithm, kind, role, units, window, count, capacity, cap, tick, ticks, extra
  algorithm, kind, role, units, window, count, capacity, cap, tick, ticks, extra, position =
    struct.unpack(LIMIT, plan, position)
  local charged = admitted and admits[i]
  -- The units that a denial consumes.
  local taken = 0
  if role == CONSUMES and not admitted and mode ~= DRY then
    local left
    if algorithm == COUNTER then
      local elapsed = now % window
      local weighed = first[i] * (ticks - (elapsed - elapsed % tick) / tick)
      left = count - second[i] - (weighed - weighed % ticks) / ticks
    elseif algorithm == BUCKET then
      left = capacity * ticks - first[i]
      left = (left - left % ticks) / ticks
    else
      left = count - first[i]
    end
    taken = math.max(math.min(units, left), 0)
    consumed = consumed or taken > 0
  end
  if settles[i] then
    afters[i], expires[i], first[i], second[i], third[i], bytes[i] = settles[i](charged, taken)
  elseif algorithm == LOG then
    local added = charged and units or 0
    afters[i], expires[i] =
      keep_log(raws[i], heads[i], first[i], second[i], third[i], window, added)
  elseif algorithm == COUNTER then
    local previous, current = first[i], second[i]
    if charged and kind == REFUND then
      local from_current = math.min(units, current)
      current = current - from_current
      previous = math.max(previous - (units - from_current), 0)
    elseif charged then
      current = kind == ASK and current + units or math.min(current + units, cap)
    elseif taken > 0 then
      current = current + taken
      second[i] = current
    end
    afters[i], expires[i], added[i] = keep_counter(previous, current, window, extra, raws[i])
  elseif algorithm == FIXED then
    local used = first[i]
    if charged then
      used = kind == REFUND and math.max(used - units, 0) or math.min(used + units, cap)
    elseif taken > 0 then
      used = used + taken
      first[i] = used
    end
    afters[i], expires[i] = keep_fixed(used, window)
  else
    local debt = first[i]
    if charged then
      local moved = math.min(units, cap) * ticks
      debt = kind == REFUND and math.max(debt - moved, 0) or math.min(debt + moved, MOST)
    elseif taken > 0 then
      debt = debt + taken * ticks
      first[i] = debt
    end
    afters[i], expires[i] = keep_bucket(debt, window, count, tick)
  end
end

local reply = struct.pack('<BI8', admitted and ADMITTED or consumed and CONSUMED or DENIED, now)
for i = 1, states do
  if bytes[i] then
    reply = reply .. struct.pack('<B', #bytes[i]) .. bytes[i]
  else
    reply = reply .. struct.pack('<I8I8I8', first[i], second[i], third[i])
  end
end
if mode == DRY then
  return reply
end
for i = 1, states do
  if not added[i] then
    write(KEYS[i], raws[i], afters[i], expires[i])
  elseif added[i] ~= 0 then
    redis.call('INCRBY', KEYS[i], added[i])
  end
end
if id and mode == UNDO then
  redis.call('DEL', id)
elseif id and (admitted or consumed) then
  local period = ARGV[4] + 0
  local record = struct.pack('<BI7I7I2', 0x87, now, period, #id_costs) .. id_costs .. reply
  write(id, remembered, record, now + period)
elseif remembered then
  -- The id has expired.
  redis.call('DEL', id)
end
return reply
