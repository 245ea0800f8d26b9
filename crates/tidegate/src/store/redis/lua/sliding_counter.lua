-- sliding-counter: the index of a window and two counts. It matches algorithms/sliding_counter.rs
-- of tidegate-core.
--
-- Bytes: the integer (index * radix + previous) * radix + current as decimal text, if the counts
-- fit (see `radix` in stored_state.rs); otherwise 0x83, the index, the previous and the current count (7
-- bytes each). Redis stores an integer without an allocation, and INCRBY charges it.
--
-- A state is kept until the end of the next window, whatever is added in this one.
local function sliding_counter(window, count, _, cap, tick, ticks, radix)
  local elapsed = now % window
  local this = (now - elapsed) / window
  -- The part of the window that is left, in ticks.
  local left = ticks - (elapsed - elapsed % tick) / tick
  local square = radix * radix
  local base = this * square
  local raw, index, previous, current
  -- The integer that is stored, if it is one of this window; otherwise the current count that is
  -- stored as bytes, if the others are those of this window.
  local stored, stored_current

  -- Returns the available units.
  local function available()
    if previous == 0 then
      return count - current
    end
    local weighed = previous * left
    return count - current - (weighed - weighed % ticks) / ticks
  end

  local function load(value)
    raw, index, previous, current, stored_current = value, this, 0, 0, nil
    if not value then
      stored = nil
      return count
    end
    local counts = #value <= 16 and tonumber(value)
    if counts then
      stored = counts
      counts = counts - base
      if counts > 0 and counts < square then
        -- An integer of this window, which is the common case.
        current = counts % radix
        previous = (counts - current) / radix
        return available()
      end
    end
    stored = nil
    if string.find(value, '^%d+$') then
      counts = tonumber(value)
      if counts >= MOST then
        corrupt()
      end
      current = counts % radix
      previous = (counts % square - current) / radix
      index = (counts - counts % square) / square
    else
      if #value ~= 22 or string.byte(value) ~= 0x83 then
        corrupt()
      end
      index, previous, current = unpack_numbers('<I7I7I7', value, 2)
      if index == this and previous <= cap then
        stored_current = current
      end
    end
    if index > this then
      -- The clock stepped back: all units move to the current window.
      previous, current = 0, current + previous
    elseif index < this then
      previous, current = index + 1 == this and current or 0, 0
    end
    if previous > cap then
      previous = cap
    end
    if current > cap then
      current = cap
    end
    return available()
  end

  local function charge(units)
    current = current + units
    if current > cap then
      current = cap
    end
  end

  local function refund(units)
    local from_current = math.min(units, current)
    current = current - from_current
    previous = math.max(previous - (units - from_current), 0)
    stored_current = nil
  end

  local function store(name)
    if previous + current == 0 then
      return write(name, raw, false)
    end
    local number = base + previous * radix + current
    if name and stored_current and (previous >= radix or current >= radix or number >= MOST) then
      if current ~= stored_current then
        redis_call('SETRANGE', name, '15', pack_numbers('<I7', current))
      end
    elseif previous >= radix or current >= radix or number >= MOST then
      local after = pack_numbers('<BI7I7I7', 0x83, this, previous, current)
      return write(name, raw, after, (this + 2) * window, (index + 2) * window)
    elseif not stored or not name then
      return write(name, raw, number, (this + 2) * window, (index + 2) * window)
    elseif number ~= stored then
      -- Formatting a number takes Redis longer than this comparison.
      number = number - stored
      redis_call('INCRBY', name, number == 1 and '1' or number)
    end
  end

  return { load = load, available = available, charge = charge, refund = refund, store = store }
end
