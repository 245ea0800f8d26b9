-- sliding-log: every admitted request. As algorithms/sliding_log.rs.
--
-- Bytes: entries, marked 0x81; see entries.lua. Replies: sum, time of the newest, time of the
-- entry that frees what is lacking; before an ask is charged, after anything else is.
local function sliding_log(raw, want)
  local log = entries(raw, 0x81)
  local function advance()
    log.reenter_future()
    log.drop_through(now - want.window)
  end
  local function charge(units)
    if want.units > 0 and log.total > 0 and log.bytes() > MAX_LOG_BYTES then
      -- The next entry shares the newest one's place: it counts until that one ages out.
      log.push(now, log.pop())
    end
    log.push(now, units)
  end
  return log.open(want, advance, charge)
end
