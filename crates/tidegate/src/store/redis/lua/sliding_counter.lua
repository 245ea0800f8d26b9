-- sliding-counter: a window's index and two counts. As algorithms/sliding_counter.rs.
--
-- Bytes: the integer of counter.lua where the counts fit it, as text; else 0x83,
-- index, previous, current. Replies: previous, current.

-- The previous and the current count, brought up to now.
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
    -- The clock stepped back: all that was counted is counted here and now.
    previous, current = 0, current + previous
  elseif index < this then
    previous, current = index + 1 == this and current or 0, 0
  end
  return previous < cap and previous or cap, current < cap and current or cap
end

-- What is kept, and until when: the end of the next window, whatever counter.lua adds. Where
-- an integer of this window is there already, what is to be added to it comes third.
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
