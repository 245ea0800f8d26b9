-- token-bucket: a time and a debt. As algorithms/token_bucket.rs.
--
-- Bytes: 0x85, time, debt, tick of the debt. Replies: debt, in the limit's ticks.
local function token_bucket(raw, want)
  local at, debt, tick = 0, 0, want.tick
  if raw then
    if #raw ~= 22 or string.byte(raw) ~= 0x85 then
      corrupt()
    end
    at, debt, tick = struct.unpack('<I7I7I7', raw, 2)
    if tick < 1 or debt > MOST then
      corrupt()
    end
  end
  if tick ~= want.tick then
    -- debt * ticks / old ticks, rounded up. The product has too many bits for a
    -- double, so the rest is multiplied digit by digit.
    local old = math.ceil(want.window / tick)
    local rest = debt % old
    local whole = (debt - rest) / old * want.ticks
    local quotient, digits, scale = 0, 0, 128 ^ 6
    while scale >= 1 do
      local digit = math.floor(want.ticks / scale) % 128
      digits = digits * 128 + rest * digit
      quotient = quotient * 128 + math.floor(digits / old)
      digits = digits % old
      scale = scale / 128
    end
    debt = math.min(whole + quotient + (digits > 0 and 1 or 0), MOST)
    tick = want.tick
  end
  local this = (now - now % tick) / tick
  if at < now then
    debt = math.max(debt - (this - (at - at % tick) / tick) * want.count, 0)
  end

  local function settle(charged)
    local debt = debt
    local moved = math.min(want.units, want.cap) * want.ticks
    if charged and want.kind == REFUND then
      debt = math.max(debt - moved, 0)
    elseif charged then
      debt = math.min(debt + moved, MOST)
    end
    if debt == 0 then
      return false
    end
    -- A count of 0 never pays off; the debt is kept a window, should the count be raised.
    local expires = now + want.window
    if want.count > 0 then
      expires = (this + math.ceil(debt / want.count)) * tick
    end
    return struct.pack('<BI7I7I7', 0x85, now, debt, tick), expires
  end
  local admits = want.least <= want.capacity
    and debt <= (want.capacity - want.least) * want.ticks
  return admits, settle, debt, 0, 0
end
