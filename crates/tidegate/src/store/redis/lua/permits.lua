-- The permits that are held, in the order in which their leases end. It matches
-- algorithms/concurrency.rs of tidegate-core.
--
-- Bytes: 0x86; the number of permits that were ever acquired (7 bytes); then for every held permit
-- its number, its cost, the time at which its lease began, its lease, and its serial number in the
-- order of acquisition (8 bytes each).
local function permits(raw)
  local held, ever = {}, 0
  local self = {total = 0, changed = false}
  if raw then
    if #raw < 48 or #raw % 40 ~= 8 or string.byte(raw) ~= 0x86 then
      corrupt()
    end
    ever = unpack_numbers('<I7', raw, 2)
    for place = 9, #raw, 40 do
      local id, cost, since, lease, order = unpack_numbers('<I8I8I8I8I8', raw, place)
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

  -- Removes the permits whose leases have ended. A lease that began after now, because the clock
  -- stepped back, is taken to begin now, and so ends sooner.
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

  -- Releases a permit. Returns whether it was held.
  function self.release(id)
    local place = find(id)
    if place then
      remove(place)
    end
    return place ~= nil
  end

  -- Starts a new lease now. Returns whether the permit was held.
  function self.renew(id, lease)
    local place = find(id)
    if place then
      local permit = remove(place)
      permit.since, permit.lease = now, lease
      insert(permit)
    end
    return place ~= nil
  end

  -- Removes units from the permits that were acquired last.
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

  -- Returns the time at which the last lease ends, or 0 if no permit is held.
  function self.last_ends()
    return held[1] and ends(held[#held]) or 0
  end

  -- Returns the time by which the leases of `units` units have ended.
  function self.freed_by(units)
    for _, permit in ipairs(held) do
      units = units - permit.cost
      if units <= 0 then
        return ends(permit)
      end
    end
    return now
  end

  -- Returns the bytes to store, or false if no permit is held.
  function self.pack()
    if not held[1] then
      return false
    elseif not self.changed then
      return raw
    end
    local parts = {pack_numbers('<BI7', 0x86, ever)}
    for place, p in ipairs(held) do
      parts[place + 1] = pack_numbers('<I8I8I8I8I8', p.id, p.cost, p.since, p.lease, p.order)
    end
    return table.concat(parts)
  end

  return self
end
