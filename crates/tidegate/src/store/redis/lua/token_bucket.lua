-- token-bucket: a time and a debt. It matches algorithms/token_bucket.rs of tidegate-core.
--
-- Bytes: 0x85, the time, the debt, the tick in which the debt is measured, and the time until which
-- the value is kept (7 bytes each). That time is an eighth of a window later than needed, so that most
-- writes need not change the expiry.
local function token_bucket(window, count, capacity, cap, tick, ticks)
  local now_tick = (now - now % tick) / tick
  local most = capacity * ticks
  local raw, debt, kept_until, old_tick
  local ceil = math.ceil

  local function available()
    local left = most - debt
    return (left - left % ticks) / ticks
  end

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

  local function load(value)
    raw, debt, kept_until, old_tick = value, 0, 0, nil
    if not value then
      return capacity
    end
    if #value ~= 29 or string.byte(value) ~= 0x85 then
      corrupt()
    end
    local at
    at, debt, old_tick, kept_until = unpack_numbers('<I7I7I7I7', value, 2)
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
    return available()
  end

  local function charge(units)
    debt = debt + (units < cap and units or cap) * ticks
    if debt > MOST then
      debt = MOST
    end
  end

  local function refund(units)
    debt = math.max(debt - math.min(units, cap) * ticks, 0)
  end

  local function store(name)
    if debt == 0 then
      return write(name, raw, false)
    end
    -- A count of 0 never repays the debt. It is kept for a window, in case the count is raised.
    local expires = now + window
    if count > 0 then
      expires = (now_tick + ceil(debt / count)) * tick
    end
    if name and expires <= kept_until and old_tick == tick then
      redis_call('SETRANGE', name, '1', pack_numbers('<I7I7', now, debt))
    else
      local until_then = math.max(kept_until, math.min(expires + ceil(window / 8), MOST))
      local after = pack_numbers('<BI7I7I7I7', 0x85, now, debt, tick, until_then)
      return write(name, raw, after, until_then, kept_until)
    end
  end

  return { load = load, available = available, charge = charge, refund = refund, store = store }
end
