-- fixed-window: a window's index and one count. As algorithms/fixed_window.rs.
--
-- Bytes: 0x84, index, count. Replies: count.
local function fixed_window(raw, want)
  local index, count = 0, 0
  if raw then
    if #raw ~= 15 or string.byte(raw) ~= 0x84 then
      corrupt()
    end
    index, count = struct.unpack('<I7I7', raw, 2)
  end
  local elapsed = now % want.window
  local this = (now - elapsed) / want.window
  if index < this then
    count = 0
  end
  count = math.min(count, want.cap)

  local function settle(charged)
    if charged and want.kind == REFUND then
      count = math.max(count - want.units, 0)
    elseif charged then
      count = math.min(count + want.units, want.cap)
    end
    if count == 0 then
      return false
    end
    return struct.pack('<BI7I7', 0x84, this, count), (this + 1) * want.window
  end
  return count + want.least <= want.count, settle, count, 0, 0
end
