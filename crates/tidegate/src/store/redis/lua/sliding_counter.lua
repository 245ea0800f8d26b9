-- sliding-counter: the index of a window and two counts. It matches algorithms/sliding_counter.rs
-- of tidegate-core.
--
-- Bytes: the integer of counter.lua as decimal text, if the counts fit; otherwise 0x83, the index,
-- the previous and the current count (7 bytes each). Reply: the previous and the current count.

-- Returns the previous and the current count, advanced to now.
local function load_counter(raw, window, cap, radix)
  if not raw then
    return 0, 0
  end
  local index, previous, current
  if #raw <= 16 and string.find(raw, '^%d+$') then
    local value = raw + 0
    if value >= MOST then
      corrupt()
    end
    current = value % radix
    local above = (value - current) / radix
    previous = above % radix
    index = (above - previous) / radix
  else
    if #raw ~= 22 or string.byte(raw) ~= 0x83 then
      corrupt()
    end
    index, previous, current = struct.unpack('<I7I7I7', raw, 2)
  end
  local this = (now - now % window) / window
  if index > this then
    -- The clock stepped back: all units move to the current window.
    previous, current = 0, current + previous
  elseif index < this then
    previous, current = index + 1 == this and current or 0, 0
  end
  return previous < cap and previous or cap, current < cap and current or cap
end

-- Returns the value to store and when it expires, which is the end of the next window, whatever
-- counter.lua adds. If the key already holds an integer of this window, the third value is the
-- difference, for INCRBY, which keeps the expiry.
local function keep_counter(previous, current, window, radix, raw)
  if previous + current == 0 then
    return false
  end
  local index = (now - now % window) / window
  local value = (index * radix + previous) * radix + current
  local expires = (index + 2) * window
  if previous < radix and current < radix and value < MOST then
    local before = raw and tonumber(raw)
    local base = index * radix * radix
    if before and before > base and before < base + radix * radix then
      return value, expires, value - before
    end
    return value, expires
  end
  return struct.pack('<BI7I7I7', 0x83, index, previous, current), expires
end
