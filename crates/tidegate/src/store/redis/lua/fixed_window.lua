-- fixed-window: the index of a window and one count. It matches algorithms/fixed_window.rs of
-- tidegate-core.
--
-- Bytes: 0x84, the index and the count (7 bytes each).
local function fixed_window(window, count, _, cap)
  local this = (now - now % window) / window
  local raw, index, used

  local function available()
    return count - used
  end

  local function load(value)
    raw, index, used = value, this, 0
    if not value then
      return count
    end
    if #value ~= 15 or string.byte(value) ~= 0x84 then
      corrupt()
    end
    index, used = unpack_numbers('<I7I7', value, 2)
    if index < this then
      used = 0
    elseif used > cap then
      used = cap
    end
    return count - used
  end

  local function charge(units)
    used = math.min(used + units, cap)
  end

  local function refund(units)
    used = math.max(used - units, 0)
  end

  local function store(name)
    local after = used > 0 and pack_numbers('<BI7I7', 0x84, this, used)
    return write(name, raw, after, (this + 1) * window, (index + 1) * window)
  end

  return { load = load, available = available, charge = charge, refund = refund, store = store }
end
