-- Fast path of sliding-log for the common request: the newest entry is before now, the oldest
-- entries expire, and one entry is added. sliding_log.lua decides all other requests; it documents
-- the bytes, and would decide these alike. A call on a full log of 100 entries takes Redis 17 us
-- with this file and 28 us without it; on a full log of 1,000 entries, 33 us and 55 us.

-- The size of the largest log, about 40,000 entries. Beyond it, a new entry is merged with the
-- newest one. Expired entries are removed in a walk, during which Redis serves nobody else; a walk
-- over a log of this size takes some ten milliseconds.
local MAX_LOG_BYTES = 131072

-- Returns the sum of the costs, the times of the newest and the oldest entry, and the position of
-- the first entry, all advanced to now; nothing if the request is not for the fast path.
local function load_log(raw, window)
  if not raw then
    return 0, 0, 0, 23
  end
  if #raw < 23 or string.byte(raw) ~= 0x81 then
    corrupt()
  end
  local oldest, newest, total = struct.unpack('<I7I7I7', raw, 2)
  if oldest > newest or total < 1 or string.byte(raw, #raw) > 127 then
    corrupt()
  end
  if newest >= now or #raw > MAX_LOG_BYTES then
    return
  end
  local cutoff = now - window
  if newest <= cutoff then
    return 0, 0, 0, #raw + 1
  end
  local head = 23
  while oldest <= cutoff do
    -- Handles entries of cost 1 with distances of up to three bytes: skips the distance of this
    -- entry, and reads that of the next.
    local a, b, c, d, e, f = string.byte(raw, head, head + 5)
    if a < 128 then
      a, b, c, head = b, c, d, head + 1
    elseif b and b < 128 then
      a, b, c, head = c, d, e, head + 2
    elseif c and c < 128 then
      a, b, c, head = d, e, f, head + 3
    else
      return
    end
    local distance
    if not a or a % 2 == 1 then
      -- The end of the log, or the cost of an entry.
      return
    elseif a < 128 then
      distance = a
    elseif b and b < 128 then
      distance = a - 128 + b * 128
    elseif b and c and c < 128 then
      distance = a - 128 + (b - 128) * 128 + c * 16384
    else
      return
    end
    oldest, total = oldest + distance / 2, total - 1
  end
  return total, newest, oldest, head
end

-- Returns the bytes to store after `units` were added, and when they expire.
local function keep_log(raw, head, total, newest, oldest, window, units)
  if units == 0 and head == 23 then
    return raw, newest + window
  elseif units == 0 then
    local header = struct.pack('<BI7I7I7', 0x81, oldest, newest, total)
    return total > 0 and header .. string.sub(raw, head), newest + window
  end
  local number = total > 0 and (now - newest) * 2 or 0
  local text = ''
  for _ = 1, units == 1 and 1 or 2 do
    while number > 127 do
      local digit = number % 128
      text = text .. string.char(digit + 128)
      number = (number - digit) / 128
    end
    text = text .. string.char(number)
    number = units * 2 + 1
  end
  local header = struct.pack('<BI7I7I7', 0x81, total > 0 and oldest or now, now, total + units)
  if total > 0 then
    return header .. string.sub(raw, head) .. text, now + window
  end
  return header .. text, now + window
end
