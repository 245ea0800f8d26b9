-- sliding-buckets: a log whose entries share places. As algorithms/sliding_buckets.rs.
--
-- Bytes: entries, marked 0x82. Replies: as sliding_log.lua.
local function sliding_buckets(raw, want)
  local buckets = entries(raw, 0x82)
  local sub_window = want.extra
  local function advance()
    buckets.reenter_future()
    local cutoff = now - want.window
    if buckets.total > 0 and buckets.newest > cutoff then
      -- The newest bucket is live, and so is all of it.
      cutoff = math.min(cutoff, buckets.newest - buckets.newest % sub_window - 1)
    end
    buckets.drop_through(cutoff)
  end
  local function charge(units)
    if buckets.total > 0 and buckets.newest < now and units > 0 then
      -- Another hit in the newest bucket: what it held becomes one place.
      local last = buckets.newest
      local start = last - last % sub_window
      local held = 0
      while buckets.total > 0 and buckets.newest >= start do
        held = held + buckets.pop()
      end
      buckets.push(last, held)
    end
    buckets.push(now, units)
  end
  return buckets.open(want, advance, charge)
end
