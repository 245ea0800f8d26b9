-- concurrency: the permits that are held, each with a lease. It matches algorithms/concurrency.rs
-- of tidegate-core.
--
-- Bytes: see permits.lua. Reply: the sum of the costs, the time at which the last lease ends, and
-- the time by which enough leases have ended for the request. The reply describes the permits
-- before an ask is charged, but after a forced charge or a refund.
local function concurrency(raw, want)
  local held = permits(raw)
  held.advance()
  local total, last = held.total, held.last_ends()
  local freed = 0
  local lacking = total + want.least - want.count
  if want.kind == ASK and lacking > 0 and want.least <= want.capacity then
    freed = held.freed_by(lacking)
  end

  local function settle(charged)
    if charged and want.kind == REFUND then
      held.refund(want.units)
    elseif charged then
      local cost = math.min(want.units, math.max(want.cap - held.total, 0))
      held.hold(want.permit, cost, want.window)
    end
    if want.kind ~= ASK then
      total, last = held.total, held.last_ends()
    end
    return held.pack(), held.last_ends(), total, last, freed
  end
  return total + want.least <= want.count, settle, total, last, freed
end
