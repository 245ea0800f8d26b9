-- concurrency: permits held, each with a lease. As algorithms/concurrency.rs.
--
-- Bytes: see permits.lua. Replies: sum, when the last ends, when enough have ended for what is
-- asked; before an ask is charged, after anything else is.
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
