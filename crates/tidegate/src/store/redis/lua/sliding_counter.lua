-- sliding-counter: a window's index and two counts. As algorithms/sliding_counter.rs.
--
-- Bytes: the integer of counter.lua where the counts fit it, as text; else 0x83,
-- index, previous, current. Replies: previous, current.
local function sliding_counter(raw, want)
  local index, previous, current = 0, 0, 0
  local radix = want.extra
  if raw and string.find(raw, '^%d+$') and #raw <= 16 then
    local value = tonumber(raw)
    if value >= MOST then
      corrupt()
    end
    local rest = value % radix
    local above = (value - rest) / radix
    current, previous = rest, above % radix
    index = (above - previous) / radix
  elseif raw then
    if #raw ~= 22 or string.byte(raw) ~= 0x83 then
      corrupt()
    end
    index, previous, current = struct.unpack('<I7I7I7', raw, 2)
  end
  local elapsed = now % want.window
  local this = (now - elapsed) / want.window
  if index > this then
    previous, current = 0, current + previous
  elseif index < this then
    previous, current = index + 1 == this and current or 0, 0
  end
  previous, current = math.min(previous, want.cap), math.min(current, want.cap)

  local function settle(charged)
    local previous, current = previous, current
    if charged and want.kind == ASK then
      current = current + want.units
    elseif charged and want.kind == FORCE then
      current = math.min(current + want.units, want.cap)
    elseif charged then
      local from_current = math.min(want.units, current)
      current = current - from_current
      previous = math.max(previous - (want.units - from_current), 0)
    end
    if previous + current == 0 then
      return false
    end
    -- Kept until the end of the next window, whatever counter.lua adds in this one.
    local expires = (this + 2) * want.window
    local value = (this * radix + previous) * radix + current
    if previous < radix and current < radix and value < MOST then
      return string.format('%.0f', value), expires
    end
    return struct.pack('<BI7I7I7', 0x83, this, previous, current), expires
  end
  local room = want.count - current - want.least
  local left = want.ticks - (elapsed - elapsed % want.tick) / want.tick
  return room >= 0 and previous * left < (room + 1) * want.ticks, settle, previous, current, 0
end
