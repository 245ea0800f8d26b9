-- fixed-window: the index of a window and one count. It matches algorithms/fixed_window.rs of
-- tidegate-core.
--
-- Bytes: 0x84, the index and the count (7 bytes each).
local function fixed_window(limit)
  local window, cap = limit.window, limit.cap
  local this = (now - now % window) / window
  local raw, index, used
  local self = {}

  function self.load(value)
    raw, index, used = value, this, 0
    if not value then
      return
    end
    if #value ~= 15 or string.byte(value) ~= 0x84 then
      corrupt()
    end
    index, used = struct.unpack('<I7I7', value, 2)
    if index < this then
      used = 0
    elseif used > cap then
      used = cap
    end
  end

  function self.available()
    return limit.count - used
  end

  function self.charge(units)
    used = math.min(used + units, cap)
  end

  function self.refund(units)
    used = math.max(used - units, 0)
  end

  function self.store(name)
    local after = used > 0 and struct.pack('<BI7I7', 0x84, this, used)
    write(name, raw, after, (this + 1) * window, (index + 1) * window)
  end

  return self
end
