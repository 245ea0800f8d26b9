-- fixed-window: the index of a window and one count. It matches algorithms/fixed_window.rs of
-- tidegate-core.
--
-- Bytes: 0x84, the index and the count (7 bytes each). Reply: the count.

-- Returns the count, advanced to now.
local function load_fixed(raw, window, cap)
  if not raw then
    return 0
  end
  if #raw ~= 15 or string.byte(raw) ~= 0x84 then
    corrupt()
  end
  local index, count = struct.unpack('<I7I7', raw, 2)
  if index < (now - now % window) / window then
    return 0
  end
  return count < cap and count or cap
end

-- Returns the bytes to store, or false for a count of 0, and when they expire.
local function keep_fixed(count, window)
  local index = (now - now % window) / window
  return count > 0 and struct.pack('<BI7I7', 0x84, index, count), (index + 1) * window
end
