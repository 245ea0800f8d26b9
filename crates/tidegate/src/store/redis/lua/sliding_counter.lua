-- sliding-counter: the index of a window and two counts. It matches algorithms/sliding_counter.rs
-- of tidegate-core.
--
-- Bytes: the integer (index * radix + previous) * radix + current as decimal text, if the counts
-- fit (see `radix` in states.rs); otherwise 0x83, the index, the previous and the current count (7
-- bytes each). Redis stores an integer without an allocation, and INCRBY charges it.
--
-- A state is kept until the end of the next window, whatever is added in this one.
local function sliding_counter(limit)
  local window, count, cap, ticks, radix = limit.window, limit.count, limit.cap, limit.ticks, limit.radix
  local elapsed = now % window
  local this = (now - elapsed) / window
  -- The part of the window that is left, in ticks.
  local left = ticks - (elapsed - elapsed % limit.tick) / limit.tick
  local base, square = this * radix * radix, radix * radix
  local raw, index, previous, current
  -- The integer that is stored, if it is one of this window.
  local stored
  local self = {}

  function self.load(value)
    raw, stored, index, previous, current = value, nil, this, 0, 0
    if not value then
      return
    end
    if #value <= 16 and string.find(value, '^%d+$') then
      local number = value + 0
      if number >= MOST then
        corrupt()
      end
      local counts = number - base
      if counts > 0 and counts < square then
        stored = number
      else
        counts = number % square
        index = (number - counts) / square
      end
      current = counts % radix
      previous = (counts - current) / radix
    else
      if #value ~= 22 or string.byte(value) ~= 0x83 then
        corrupt()
      end
      index, previous, current = struct.unpack('<I7I7I7', value, 2)
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
  end

  function self.available()
    if previous == 0 then
      return count - current
    end
    local weighed = previous * left
    return count - current - (weighed - weighed % ticks) / ticks
  end

  function self.charge(units)
    current = current + units
    if current > cap then
      current = cap
    end
  end

  function self.refund(units)
    local from_current = math.min(units, current)
    current = current - from_current
    previous = math.max(previous - (units - from_current), 0)
  end

  function self.store(name)
    if previous + current == 0 then
      return write(name, raw, false)
    end
    local number = base + previous * radix + current
    if previous >= radix or current >= radix or number >= MOST then
      local after = struct.pack('<BI7I7I7', 0x83, this, previous, current)
      write(name, raw, after, (this + 2) * window, (index + 2) * window)
    elseif not stored then
      write(name, raw, number, (this + 2) * window, (index + 2) * window)
    elseif number ~= stored then
      redis_call('INCRBY', name, number - stored)
    end
  end

  return self
end
