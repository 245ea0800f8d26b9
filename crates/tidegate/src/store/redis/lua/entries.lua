-- A packed queue of (time, cost), oldest first. As entries.rs of tidegate-core.
--
-- Bytes: the algorithm's mark, times of the oldest and the newest, sum of all costs,
-- and then for every entry varint(distance << 1), and varint(cost << 1 | 1) unless the
-- cost is 1. The distance of the oldest means nothing.
local function entries(raw, mark)
  local byte, char, sub = string.byte, string.char, string.sub
  local HEADER = 22
  -- The packed entries are bytes head to tail of packed.
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

  -- The number at a place, and where the next one is.
  local function read(place)
    -- Three bytes are the most usual: an entry some ten milliseconds after another.
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

  -- Walks from the oldest for as long as `on(time, cost)` says, and returns the time of
  -- the entry it stopped at and where that begins; nothing at the end.
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

  -- Appends an entry; at the newest's time or before, it joins that.
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

  -- Removes every entry at `cutoff` or before.
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

  -- Collects everything later than now into one entry at now.
  function self.reenter_future()
    local cost = 0
    while self.total > 0 and self.newest > now do
      cost = cost + self.pop()
    end
    self.push(now, cost)
  end

  -- Takes units off the newest entries.
  function self.refund(units)
    while units > 0 and self.total > 0 do
      local at = self.newest
      local cost = self.pop()
      local kept = math.max(cost - units, 0)
      units = units - (cost - kept)
      self.push(at, kept)
    end
  end

  -- The time of the entry with which, from the oldest, so many units are reached.
  function self.time_of_unit(units)
    return (walk(function(_, cost)
      units = units - cost
      return units > 0
    end))
  end

  -- How many bytes the entries take.
  function self.bytes()
    return tail - head + 1
  end

  -- All of it as it is kept; false for nothing.
  function self.pack()
    if self.total == 0 then
      return false
    elseif not self.changed then
      return raw
    end
    local header = struct.pack('<BI7I7I7', mark, self.oldest, self.newest, self.total)
    return header .. sub(packed, head, tail)
  end

  -- What the limit lacks for what is asked, as the time of the entry that frees it.
  function self.freed_by(want)
    local lacking = self.total + want.least - want.count
    if want.kind ~= ASK or lacking <= 0 or want.least > want.capacity then
      return 0
    end
    return self.time_of_unit(lacking) or now
  end

  -- Opens them for what is wanted: what they say, and how they settle: `charged` if the request is
  -- admitted, or with the units that a denial consumes. `advance` brings them up to now, `charge`
  -- adds units.
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
