-- token-bucket: a time and a debt. It matches algorithms/token_bucket.rs of tidegate-core.
--
-- Bytes: 0x85, the time, the debt and the tick in which the debt is measured (7 bytes each). Reply:
-- the debt in ticks of the limit.

-- Returns the debt, advanced to now, in ticks of the limit.
local function load_bucket(raw, window, count, tick, ticks)
  if not raw then
    return 0
  end
  if #raw ~= 22 or string.byte(raw) ~= 0x85 then
    corrupt()
  end
  local at, debt, old_tick = struct.unpack('<I7I7I7', raw, 2)
  if old_tick < 1 or debt > MOST then
    corrupt()
  end
  if old_tick ~= tick then
    -- debt * ticks / old, rounded up. The product has too many bits for a double, so the remainder
    -- is multiplied and divided digit by digit, in base 128.
    local old = math.ceil(window / old_tick)
    local rest = debt % old
    local quotient, digits, scale = 0, 0, 128 ^ 6
    while scale >= 1 do
      digits = digits * 128 + rest * (math.floor(ticks / scale) % 128)
      quotient = quotient * 128 + math.floor(digits / old)
      digits = digits % old
      scale = scale / 128
    end
    debt = math.min((debt - rest) / old * ticks + quotient + (digits > 0 and 1 or 0), MOST)
  end
  if at < now then
    local paid = ((now - now % tick) / tick - (at - at % tick) / tick) * count
    debt = debt > paid and debt - paid or 0
  end
  return debt
end

-- Returns the bytes to store, or false for a debt of 0, and when they expire.
local function keep_bucket(debt, window, count, tick)
  if debt == 0 then
    return false
  end
  -- A count of 0 never repays the debt. It is kept for a window, in case the count is raised.
  local expires = now + window
  if count > 0 then
    expires = ((now - now % tick) / tick + math.ceil(debt / count)) * tick
  end
  return struct.pack('<BI7I7I7', 0x85, now, debt, tick), expires
end
