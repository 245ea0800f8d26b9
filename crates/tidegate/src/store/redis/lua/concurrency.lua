-- concurrency: the permits that are held, each with a lease. It matches algorithms/concurrency.rs
-- of tidegate-core.
--
-- Bytes: see permits.lua. Summary: the sum of the costs, the time at which the last lease ends, and
-- the time by which enough leases have ended.
local function concurrency(window, count, capacity, cap)
  local raw, held

  local function available()
    return count - held.total
  end

  local function load(value)
    raw, held = value, permits(value)
    held.advance()
    return count - held.total
  end

  local function charge(units, permit)
    held.hold(permit, math.min(units, math.max(cap - held.total, 0)), window)
  end

  local function refund(units)
    held.refund(units)
  end

  local function store(name)
    write(name, raw, held.pack(), held.last_ends())
  end

  local function summary()
    return held.total, held.last_ends()
  end

  -- Returns the time by which enough leases have ended for a cost; 0 if there is room, or the cost
  -- exceeds the capacity.
  local function freed_by(cost)
    local lacking = held.total + cost - count
    if lacking <= 0 or cost > capacity then
      return 0
    end
    return held.freed_by(lacking)
  end

  return {
    load = load, available = available, charge = charge, refund = refund, store = store,
    summary = summary, freed_by = freed_by,
  }
end
