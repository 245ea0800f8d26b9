-- fixed-window: a window's index and one count. As algorithms/fixed_window.rs.
--
-- Bytes: 0x84, index, count. Replies: the count.

-- The count, brought up to now.
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

-- What is kept, and until when.
local function keep_fixed(count, window)
  local index = (now - now % window) / window
  return count > 0 and struct.pack('<BI7I7', 0x84, index, count), (index + 1) * window
end
