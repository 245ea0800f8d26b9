-- token-bucket: a time and a debt. It matches algorithms/token_bucket.rs of tidegate-core.
--
-- Bytes: 0x85, the time, the debt and the tick in which the debt is measured (7 bytes each).
local function token_bucket(limit)
  local window, count, tick, ticks = limit.window, limit.count, limit.tick, limit.ticks
  local now_tick = (now - now % tick) / tick
  local most = limit.capacity * ticks
  local raw, debt
  local self = {}

  -- Returns debt * ticks / old, rounded up, for a debt in ticks of another length, of which `old`
  -- are a window. The product has too many bits for a double, so the remainder is multiplied and
  -- divided digit by digit, in base 128.
  local function converted(owed, old)
    local rest = owed % old
    local quotient, digits, scale = 0, 0, 128 ^ 6
    while scale >= 1 do
      digits = digits * 128 + rest * (math.floor(ticks / scale) % 128)
      quotient = quotient * 128 + math.floor(digits / old)
      digits = digits % old
      scale = scale / 128
    end
    return math.min((owed - rest) / old * ticks + quotient + (digits > 0 and 1 or 0), MOST)
  end

  function self.load(value)
    raw, debt = value, 0
    if not value then
      return
    end
    if #value ~= 22 or string.byte(value) ~= 0x85 then
      corrupt()
    end
    local at, old_tick
    at, debt, old_tick = struct.unpack('<I7I7I7', value, 2)
    if old_tick < 1 or debt > MOST then
      corrupt()
    end
    if old_tick ~= tick then
      debt = converted(debt, math.ceil(window / old_tick))
    end
    if at < now then
      debt = debt - (now_tick - (at - at % tick) / tick) * count
      if debt < 0 then
        debt = 0
      end
    end
  end

  function self.available()
    local left = most - debt
    return (left - left % ticks) / ticks
  end

  function self.charge(units)
    debt = math.min(debt + math.min(units, limit.cap) * ticks, MOST)
  end

  function self.refund(units)
    debt = math.max(debt - math.min(units, limit.cap) * ticks, 0)
  end

  function self.store(name)
    if debt == 0 then
      return write(name, raw, false)
    end
    -- A count of 0 never repays the debt. It is kept for a window, in case the count is raised.
    local expires = now + window
    if count > 0 then
      expires = (now_tick + math.ceil(debt / count)) * tick
    end
    write(name, raw, struct.pack('<BI7I7I7', 0x85, now, debt, tick), expires)
  end

  return self
end
