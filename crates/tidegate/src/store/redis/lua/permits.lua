-- The permits that are held, in the order in which they end. As algorithms/concurrency.rs.
--
-- Bytes: 0x86, how many were ever held, and for each that is: number, cost, since when,
-- lease, which one it was.
local function permits(raw)
  local held, ever = {}, 0
  local self = {total = 0, changed = false}
  if raw then
    if #raw < 48 or #raw % 40 ~= 8 or string.byte(raw) ~= 0x86 then
      corrupt()
    end
    ever = struct.unpack('<I7', raw, 2)
    for place = 9, #raw, 40 do
      local id, cost, since, lease, order = struct.unpack('<I8I8I8I8I8', raw, place)
      held[#held + 1] = {id = id, cost = cost, since = since, lease = lease, order = order}
      self.total = self.total + cost
    end
  end

  local function ends(permit)
    return permit.since + permit.lease
  end

  local function remove(place)
    local permit = table.remove(held, place)
    self.total, self.changed = self.total - permit.cost, true
    return permit
  end

  local function insert(permit)
    local place = #held + 1
    while place > 1 and ends(held[place - 1]) > ends(permit) do
      place = place - 1
    end
    table.insert(held, place, permit)
    self.total, self.changed = self.total + permit.cost, true
  end

  local function find(id)
    for place, permit in ipairs(held) do
      if permit.id == id then
        return place
      end
    end
  end

  -- Lets go of what has ended; what is from the future began now, and so ends sooner.
  function self.advance()
    local all, is_future = held, false
    for _, permit in ipairs(all) do
      if permit.since > now then
        permit.since, is_future = now, true
      end
    end
    if is_future then
      held, self.total = {}, 0
      for _, permit in ipairs(all) do
        insert(permit)
      end
    end
    while held[1] and ends(held[1]) <= now do
      remove(1)
    end
  end

  function self.hold(id, cost, lease)
    if cost > 0 then
      ever = ever + 1
      insert({id = id, cost = cost, since = now, lease = lease, order = ever})
    end
  end

  -- Gives a permit back; whether it was held.
  function self.release(id)
    local place = find(id)
    if place then
      remove(place)
    end
    return place ~= nil
  end

  -- Starts a lease anew; whether the permit was held.
  function self.renew(id, lease)
    local place = find(id)
    if place then
      local permit = remove(place)
      permit.since, permit.lease = now, lease
      insert(permit)
    end
    return place ~= nil
  end

  -- Takes units off the newest.
  function self.refund(units)
    while units > 0 and held[1] do
      local newest = 1
      for place, permit in ipairs(held) do
        if permit.order > held[newest].order then
          newest = place
        end
      end
      local permit = held[newest]
      local taken = math.min(units, permit.cost)
      permit.cost, self.total, self.changed = permit.cost - taken, self.total - taken, true
      units = units - taken
      if permit.cost == 0 then
        remove(newest)
      end
    end
  end

  -- When the last ends.
  function self.last_ends()
    return held[1] and ends(held[#held]) or 0
  end

  -- When so many units will have been given back.
  function self.freed_by(units)
    for _, permit in ipairs(held) do
      units = units - permit.cost
      if units <= 0 then
        return ends(permit)
      end
    end
    return now
  end

  -- All of it as it is kept; false for nothing.
  function self.pack()
    if not held[1] then
      return false
    elseif not self.changed then
      return raw
    end
    local parts = {struct.pack('<BI7', 0x86, ever)}
    for place, p in ipairs(held) do
      parts[place + 1] = struct.pack('<I8I8I8I8I8', p.id, p.cost, p.since, p.lease, p.order)
    end
    return table.concat(parts)
  end

  return self
end
