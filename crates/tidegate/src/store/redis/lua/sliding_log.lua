-- sliding-log: the time and cost of every admitted request, oldest first. It matches
-- algorithms/sliding_log/mod.rs and the encoding of entries.rs of tidegate-core.
--
-- Bytes: 0x81; the times of the oldest and the newest entry and the sum of all costs (7 bytes
-- each); then for every entry varint(distance << 1), followed by varint(cost << 1 | 1) unless the
-- cost is 1. The distance is that to the previous entry; the distance of the oldest is ignored.
--
-- Summary: the sum of the costs, the time of the newest entry, and the time of the entry whose
-- expiry makes room.
local function sliding_log(window, count, capacity, cap)
  local byte, char, sub = string.byte, string.char, string.sub
  local HEADER = 22
  -- The size of the largest log, about 40,000 entries. Beyond it, a new entry is merged with the
  -- newest one. Expired entries are removed in a walk, during which Redis serves nobody else; a
  -- walk over a log of this size takes some ten milliseconds.
  local MAX_BYTES = 131072
  -- A stored log is kept until the end of the sixteenth of a window in which it expires, so that
  -- most writes need not change the expiry.
  local GRID = math.ceil(window / 16)
  -- The entries are the bytes `head` to `tail` of `packed`. `added` units were charged now and are
  -- not yet among them; `total` includes them.
  local raw, packed, head, tail
  local oldest, newest, total, added, changed, kept_until

  local function until_grid(time)
    return math.ceil((time + window) / GRID) * GRID
  end

  -- Reads the number at a position. Returns it and the position of the next number.
  local function read(place)
    -- Three bytes are the most common length: distances from about 8 ms to 1 s.
    local a, b, c = byte(packed, place, place + 2)
    if c and c < 128 and b > 127 and a > 127 and place + 2 <= tail then
      return a + b * 128 + c * 16384 - 16512, place + 3
    end
    local number, scale = 0, 1
    while place <= tail do
      local digit = byte(packed, place)
      place = place + 1
      if digit < 128 then
        return number + digit * scale, place
      end
      number = number + (digit - 128) * scale
      scale = scale * 128
    end
    corrupt()
  end

  local function varint(number)
    local text = ''
    while number >= 128 do
      local digit = number % 128
      text = text .. char(digit + 128)
      number = (number - digit) / 128
    end
    return text .. char(number)
  end

  local function clear()
    packed, head, tail = '', 1, 0
    total, changed = 0, true
  end

  -- Removes the newest packed entry and returns its cost.
  local function pop()
    local function start_before(last)
      local start = last
      while start > head and byte(packed, start - 1) >= 128 do
        start = start - 1
      end
      return start
    end
    local start = start_before(tail)
    local number, cost = read(start), 1
    if number % 2 == 1 then
      if start == head then
        corrupt()
      end
      cost = (number - 1) / 2
      start = start_before(start - 1)
      number = read(start)
    end
    tail = start - 1
    total, changed = total - cost, true
    if tail < head then
      if total ~= 0 then
        corrupt()
      end
      clear()
    else
      newest = newest - number / 2
      if total < 1 or newest < oldest then
        corrupt()
      end
    end
    return cost
  end

  -- Appends an entry. If it is not later than the newest entry, its cost is added to that one.
  local function push(at, cost)
    if cost == 0 then
      return
    end
    if total > 0 and newest >= at then
      at = newest
      cost = cost + pop()
    end
    local distance = 0
    if total == 0 then
      oldest = at
    else
      distance = at - newest
    end
    local text = varint(distance * 2)
    if cost ~= 1 then
      text = text .. varint(cost * 2 + 1)
    end
    packed = sub(packed, head, tail) .. text
    head, tail = 1, #packed
    newest, total, changed = at, total + cost, true
  end

  -- Packs the units that were charged now.
  local function flush()
    if added > 0 then
      local units = added
      added, total = 0, total - units
      push(now, units)
    end
  end

  -- Removes the entries that are a window old.
  local function drop_expired()
    local cutoff = now - window
    if total == 0 or oldest > cutoff then
      return
    elseif newest <= cutoff then
      return clear()
    end
    -- Skips the distance of the oldest entry.
    local _, place = read(head)
    while oldest <= cutoff do
      local cost, start = 1, place
      local number
      number, place = read(place)
      if number % 2 == 1 then
        cost, start = (number - 1) / 2, place
        number, place = read(place)
      end
      total, head, oldest = total - cost, start, oldest + number / 2
    end
    if total < 1 or oldest > newest then
      corrupt()
    end
    changed = true
  end

  -- Returns the time of the entry that holds unit number `units`, counted from the oldest.
  local function time_of_unit(units)
    if units > total - added then
      return now
    end
    local at = oldest
    local _, place = read(head)
    while true do
      local cost, number = 1, 0
      if place <= tail then
        number, place = read(place)
        if number % 2 == 1 then
          cost, number = (number - 1) / 2, 0
          if place <= tail then
            number, place = read(place)
          end
        end
      end
      units = units - cost
      if units <= 0 then
        return at
      elseif number == 0 and place > tail then
        corrupt()
      end
      at = at + number / 2
    end
  end

  local function available()
    return count - total
  end

  local function load(value)
    raw, packed, head, tail = value, '', 1, 0
    oldest, newest, total, added, changed, kept_until = 0, 0, 0, 0, false, nil
    if not value then
      return count
    end
    if #value <= HEADER or byte(value) ~= 0x81 then
      corrupt()
    end
    oldest, newest, total = unpack_numbers('<I7I7I7', value, 2)
    packed, head, tail = value, HEADER + 1, #value
    if oldest > newest or total < 1 or byte(value, tail) >= 128 then
      corrupt()
    end
    kept_until = until_grid(newest)
    if newest > now then
      -- The clock stepped back: the entries later than now become one entry at now.
      local cost = 0
      while total > 0 and newest > now do
        cost = cost + pop()
      end
      push(now, cost)
    end
    drop_expired()
    return count - total
  end

  local function charge(units)
    units = math.min(units, math.max(cap - total, 0))
    if added == 0 and total > 0 and tail - head + 1 > MAX_BYTES then
      -- Moves the newest entry to now, so that the log does not grow. Its units count until the new
      -- entry expires.
      push(now, pop())
    end
    added, total = added + units, total + units
  end

  local function refund(units)
    flush()
    while units > 0 and total > 0 do
      local at = newest
      local cost = pop()
      local kept = math.max(cost - units, 0)
      units = units - (cost - kept)
      push(at, kept)
    end
    drop_expired()
  end

  local function store(name)
    flush()
    if total == 0 then
      return write(name, raw, false)
    elseif changed or not name then
      local after = pack_numbers('<BI7I7I7', 0x81, oldest, newest, total) .. sub(packed, head, tail)
      return write(name, raw, after, until_grid(newest), kept_until)
    end
  end

  local function summary()
    return total, added > 0 and now or newest
  end

  -- Returns the time of the entry whose expiry makes room for a cost; 0 if there is room, or the
  -- cost exceeds the capacity.
  local function freed_by(cost)
    local lacking = total + cost - count
    if lacking <= 0 or cost > capacity then
      return 0
    end
    return time_of_unit(lacking)
  end

  return {
    load = load, available = available, charge = charge, refund = refund, store = store,
    summary = summary, freed_by = freed_by,
  }
end
