-- A packed queue of (time, cost) entries, oldest first. The encoding of an entry is that of
-- entries.rs in tidegate-core.
--
-- Bytes: the mark of the algorithm (1 byte); the times of the oldest and the newest entry and the
-- sum of all costs (7 bytes each); then for every entry varint(distance << 1), followed by
-- varint(cost << 1 | 1) unless the cost is 1. The distance is that to the previous entry; the
-- distance of the oldest entry is ignored.
local function entries(raw, mark)
  local byte, char, sub = string.byte, string.char, string.sub
  local HEADER = 22
  -- The entries are the bytes `head` to `tail` of `packed`.
  local packed, head, tail = '', 1, 0
  local self = {total = 0, oldest = 0, newest = 0, changed = false}
  if raw then
    if #raw <= HEADER or byte(raw) ~= mark then
      corrupt()
    end
    self.oldest, self.newest, self.total = struct.unpack('<I7I7I7', raw, 2)
    packed, head, tail = raw, HEADER + 1, #raw
    if self.oldest > self.newest or self.total < 1 or byte(raw, tail) >= 128 then
      corrupt()
    end
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

  local function write(number)
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
    self.total, self.changed = 0, true
  end

  -- Walks from the oldest entry for as long as `on(time, cost)` returns true. Returns the time and
  -- the position of the entry it stopped at, or nothing if it passed the last entry.
  local function walk(on)
    local at, start = self.oldest, head
    local _, place = read(start)
    while true do
      local cost, following, distance = 1, place, nil
      if place <= tail then
        distance, following = read(place)
        if distance % 2 == 1 then
          cost, place, distance = (distance - 1) / 2, following, nil
          if place <= tail then
            distance, following = read(place)
          end
        end
      end
      if not on(at, cost) then
        return at, start
      elseif not distance then
        return
      end
      at, start, place = at + distance / 2, place, following
    end
  end

  -- Removes the newest entry and returns its cost.
  function self.pop()
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
      local last = start - 1
      start = start_before(last)
      number = read(start)
    end
    tail = start - 1
    self.total, self.changed = self.total - cost, true
    if tail < head then
      if self.total ~= 0 then
        corrupt()
      end
      clear()
    else
      self.newest = self.newest - number / 2
      if self.total < 1 or self.newest < self.oldest then
        corrupt()
      end
    end
    return cost
  end

  -- Appends an entry. If it is not later than the newest entry, its cost is added to that one.
  function self.push(at, cost)
    if cost == 0 then
      return
    end
    if self.total > 0 and self.newest >= at then
      at = self.newest
      cost = cost + self.pop()
    end
    local distance = 0
    if self.total == 0 then
      self.oldest = at
    else
      distance = at - self.newest
    end
    local text = write(distance * 2)
    if cost ~= 1 then
      text = text .. write(cost * 2 + 1)
    end
    packed = sub(packed, head, tail) .. text
    head, tail = 1, #packed
    self.newest, self.total, self.changed = at, self.total + cost, true
  end

  -- Removes the entries at or before `cutoff`.
  function self.drop_through(cutoff)
    if self.total == 0 or self.oldest > cutoff then
      return
    elseif self.newest <= cutoff then
      return clear()
    end
    local total = self.total
    local at, start = walk(function(at, cost)
      if at > cutoff then
        return false
      end
      total = total - cost
      return true
    end)
    if not at or total < 1 then
      corrupt()
    end
    head, self.oldest, self.total, self.changed = start, at, total, true
  end

  -- Merges the entries later than now into one entry at now.
  function self.reenter_future()
    local cost = 0
    while self.total > 0 and self.newest > now do
      cost = cost + self.pop()
    end
    self.push(now, cost)
  end

  -- Removes units from the newest entries.
  function self.refund(units)
    while units > 0 and self.total > 0 do
      local at = self.newest
      local cost = self.pop()
      local kept = math.max(cost - units, 0)
      units = units - (cost - kept)
      self.push(at, kept)
    end
  end

  -- Returns the time of the entry that holds unit number `units`, counted from the oldest.
  function self.time_of_unit(units)
    return (walk(function(_, cost)
      units = units - cost
      return units > 0
    end))
  end

  -- Returns the size of the packed entries in bytes.
  function self.bytes()
    return tail - head + 1
  end

  -- Returns the bytes to store, or false if the queue is empty.
  function self.pack()
    if self.total == 0 then
      return false
    elseif not self.changed then
      return raw
    end
    local header = struct.pack('<BI7I7I7', mark, self.oldest, self.newest, self.total)
    return header .. sub(packed, head, tail)
  end

  -- Returns the time of the entry whose expiry makes room for the request; 0 if the cost is not an
  -- ask, fits already or exceeds the capacity.
  function self.freed_by(want)
    local lacking = self.total + want.least - want.count
    if want.kind ~= ASK or lacking <= 0 or want.least > want.capacity then
      return 0
    end
    return self.time_of_unit(lacking) or now
  end

  -- Opens the entries as large.lua describes. `advance` advances them to now, and `charge` adds
  -- units.
  function self.open(want, advance, charge)
    advance()
    local total, newest, freed = self.total, self.newest, self.freed_by(want)
    local function settle(charged, consumed)
      if charged and want.kind == REFUND then
        self.refund(want.units)
        advance()
      elseif charged then
        charge(math.min(want.units, math.max(want.cap - self.total, 0)))
      elseif consumed > 0 then
        charge(consumed)
        total, newest, freed = self.total, self.newest, self.freed_by(want)
      end
      if want.kind ~= ASK then
        total, newest = self.total, self.newest
      end
      return self.pack(), self.newest + want.window, total, newest, freed
    end
    return total + want.least <= want.count, settle, total, newest, freed
  end

  return self
end
