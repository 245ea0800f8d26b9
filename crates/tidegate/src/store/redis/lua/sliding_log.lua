-- sliding-log: the time and cost of every admitted request. It matches algorithms/sliding_log.rs of
-- tidegate-core.
--
-- Bytes: see entries.lua; the mark is 0x81. Reply: the sum of the costs, the time of the newest
-- entry, and the time of the entry whose expiry makes room for the request. The reply describes the
-- log before an ask is charged, but after a forced charge, a refund or units that a denial
-- consumes.
local function sliding_log(raw, want)
  local log = entries(raw, 0x81)
  local function advance()
    log.reenter_future()
    log.drop_through(now - want.window)
  end
  local function charge(units)
    if want.units > 0 and log.total > 0 and log.bytes() > MAX_LOG_BYTES then
      -- Merges the newest entry into the new one, so that the log does not grow. The merged units
      -- count until the new entry expires.
      log.push(now, log.pop())
    end
    log.push(now, units)
  end
  return log.open(want, advance, charge)
end
