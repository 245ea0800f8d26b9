-- concurrency: the permits that are held, each with a lease. It matches algorithms/concurrency.rs
-- of tidegate-core.
--
-- Bytes: see permits.lua. Summary: the sum of the costs, the time at which the last lease ends, and
-- the time by which enough leases have ended.
local function concurrency(limit)
  local raw, held
  local self = {}

  function self.load(value)
    raw, held = value, permits(value)
    held.advance()
  end

  function self.available()
    return limit.count - held.total
  end

  function self.charge(units, permit)
    held.hold(permit, math.min(units, math.max(limit.cap - held.total, 0)), limit.window)
  end

  function self.refund(units)
    held.refund(units)
  end

  function self.store(name)
    write(name, raw, held.pack(), held.last_ends())
  end

  function self.summary()
    return held.total, held.last_ends()
  end

  -- Returns the time by which enough leases have ended for a cost; 0 if there is room, or the cost
  -- exceeds the capacity.
  function self.freed_by(cost)
    local lacking = held.total + cost - limit.count
    if lacking <= 0 or cost > limit.capacity then
      return 0
    end
    return held.freed_by(lacking)
  end

  return self
end
