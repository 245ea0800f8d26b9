-- token-bucket: a time and a debt. As algorithms/token_bucket.rs.
--
-- Bytes: 0x85, time, debt, tick of the debt. Replies: debt, in the limit's ticks.

-- The debt, brought up to now.
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
    -- debt * ticks / old ticks, rounded up. The product has too many bits for a
    -- double, so the rest is multiplied digit by digit.
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

-- What is kept, and until when.
local function keep_bucket(debt, window, count, tick)
  if debt == 0 then
    return false
  end
  -- A count of 0 never pays off; the debt is kept a window, should the count be raised.
  local expires = now + window
  if count > 0 then
    expires = ((now - now % tick) / tick + math.ceil(debt / count)) * tick
  end
  return struct.pack('<BI7I7I7', 0x85, now, debt, tick), expires
end
