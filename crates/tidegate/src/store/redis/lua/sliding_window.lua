-- sliding-window: cells with their lag, or up to 20 times. It matches algorithms/sliding_window/ of
-- tidegate-core, where the algorithm is explained.
--
-- Bytes of the log form: 0x88; the newest time in steps of the grid (7 bytes); for every unit,
-- oldest first, its distance from the newest time (2 bytes).
--
-- Bytes of the forms with 15, 7 and 3 cells: 0x89, 0x8a or 0x8b; the pace (5 bytes); the index of
-- the newest cell (7 bytes); for every cell, oldest first, 16 times its distance from the newest
-- cell plus its last hit (1 byte), its units (2, 3 or 5 bytes) and its lag (1, 3 or 5 bytes).
--
-- Reply: these bytes from before the charge or, if a denial consumed units, from after it.
local function sliding_window(raw, want)
  local TIMES, WIDEST = 0, 3
  local CELLS = { 15, 7, 3 }
  local LARGEST_LIMIT = { [0] = 20, 2000, 2000000 }
  local MOST_UNITS = { [0] = 20, 2047, 2097151, 1099511627775 }
  local PACKED_CELL = { '<BI2I1', '<BI3I3', '<BI5I5' }
  local CELL_BYTES = { 4, 7, 11 }
  local window = want.window
  -- The state: its form and pace, times of the log form, and cells of the others, oldest first.
  local form, pace, times = TIMES, 0, {}
  local indexes, units, lags, steps = {}, {}, {}, {}
  -- Derived from form and pace: the length of a tick of the pace, the window in ticks, the length
  -- of a cell (in the log form, of a step of its grid) and of a fifteenth of a cell, and the window
  -- in steps of the grid.
  local tick, ticks, cell, step, grid_window

  local function div(a, b)
    return (a - a % b) / b
  end
  local function div_up(a, b)
    return div(a + b - 1, b)
  end
  local function use(new_form, new_pace)
    form, pace = new_form, new_pace
    if form == TIMES then
      -- 1, 2, 5, 10, 20, ...
      local GROWTH, turn = { 2, 2.5, 2 }, 1
      pace, cell = 0, 1
      while div_up(window, cell) > 65535 do
        cell = cell * GROWTH[turn]
        turn = turn % 3 + 1
      end
      grid_window = div_up(window, cell)
      return
    end
    cell = div_up(window, CELLS[form])
    step = div_up(cell, 15)
    -- The finest ticks for which the product of the window and the pace is exact. fmod is exact.
    local most = (MOST - math.fmod(MOST, pace + 1)) / (pace + 1)
    tick, ticks = 1, window
    while ticks > most do
      tick = tick * 10
      ticks = div_up(window, tick)
    end
  end
  local function form_of(limit)
    local found = TIMES
    while found < WIDEST and limit > LARGEST_LIMIT[found] do
      found = found + 1
    end
    return found
  end
  -- Returns the units that arrive at the pace in `us` microseconds.
  local function paced(us)
    return div(pace * div(us, tick), ticks)
  end
  local function last_offset(i)
    return math.min(steps[i] * step, cell)
  end
  -- Returns the time at which the last unit of a cell is a window old.
  local function whole(i)
    return indexes[i] * cell + last_offset(i) + window
  end
  local function is_empty()
    return #times == 0 and #indexes == 0
  end

  local function used()
    local sum = #times
    for i = 1, #indexes do
      local expired = 0
      local passed = now - window - indexes[i] * cell
      if passed > 0 then
        expired = math.min(math.max(paced(passed) - lags[i], 0), units[i])
      end
      sum = sum + units[i] - expired
    end
    return sum
  end
  local function add(added, at)
    if form == TIMES then
      for _ = 1, added do
        times[#times + 1] = div_up(at, cell)
      end
      return
    end
    local index, offset = div(at, cell), at % cell
    local i = #indexes
    if i == 0 or indexes[i] ~= index then
      i = i + 1
      indexes[i], units[i], lags[i], steps[i] = index, 0, 0, 0
    end
    lags[i] = math.min(math.max(lags[i], paced(offset) - units[i]), paced(cell))
    units[i] = math.min(units[i] + added, MOST_UNITS[form])
    steps[i] = math.max(steps[i], div_up(offset, step))
  end
  -- Removes cells whose last unit is a window old.
  local function drop_expired()
    local kept = 0
    for i = 1, #indexes do
      local index, unit, lag, last = indexes[i], units[i], lags[i], steps[i]
      local is_live = whole(i) > now
      indexes[i], units[i], lags[i], steps[i] = nil, nil, nil, nil
      if is_live then
        kept = kept + 1
        indexes[kept], units[kept], lags[kept], steps[kept] = index, unit, lag, last
      end
    end
  end
  -- Charges all held units again in the next wider form, under another pace.
  local function widen(new_pace)
    local at, held = {}, {}
    for i = 1, #times do
      at[i], held[i] = times[i] * cell, 1
    end
    for i = 1, #indexes do
      at[i], held[i] = whole(i) - window, units[i]
    end
    times, indexes, units, lags, steps = {}, {}, {}, {}, {}
    use(form + 1, new_pace)
    for i = 1, #at do
      add(held[i], math.min(at[i], now))
    end
    -- The log holds units up to a step of its grid longer than a window, so their cell may have
    -- expired.
    drop_expired()
  end
  local function make_room(added, new_pace)
    while form < WIDEST do
      local held, i = #times, #indexes
      if i > 0 and indexes[i] == div(now, cell) then
        held = units[i]
      end
      if held + added <= MOST_UNITS[form] then
        return
      end
      widen(new_pace)
    end
  end
  local function charge(added)
    if added == 0 then
      return
    end
    local limit = want.count
    local wanted = form_of(limit)
    if is_empty() then
      use(wanted, limit)
    end
    while form < wanted do
      widen(limit)
    end
    make_room(added, limit)
    if form ~= TIMES and pace ~= limit then
      use(form, limit)
      for i = 1, #indexes do
        lags[i] = paced(last_offset(i))
      end
    end
    add(added, now)
  end
  local function refund(taken)
    while taken > 0 and #times > 0 do
      times[#times] = nil
      taken = taken - 1
    end
    while taken > 0 and #indexes > 0 do
      local i = #indexes
      local from = math.min(taken, units[i])
      taken = taken - from
      units[i] = units[i] - from
      if units[i] == 0 then
        indexes[i], units[i], lags[i], steps[i] = nil, nil, nil, nil
      end
    end
  end

  -- Reads the state, and rejects bytes that this script cannot have written.
  local function load()
    local mark = string.byte(raw) or 0
    if mark < 0x88 or mark > 0x8b or #raw < 10 then
      corrupt()
    end
    local newest, place, last
    if mark == 0x88 then
      use(TIMES, 0)
      newest, place = struct.unpack('<I7', raw, 2)
      if #raw % 2 == 1 or #raw > 48 then
        corrupt()
      end
      while place <= #raw do
        last, place = struct.unpack('<I2', raw, place)
        times[#times + 1] = newest - last
        if #times > 1 and times[#times] < times[#times - 1] then
          corrupt()
        end
      end
    else
      local new_form = mark - 0x88
      local held_pace
      held_pace, newest, place = struct.unpack('<I5I7', raw, 2)
      local cells = (#raw - 13) / CELL_BYTES[new_form]
      if cells < 1 or cells % 1 ~= 0 or form_of(held_pace) > new_form then
        corrupt()
      end
      use(new_form, held_pace)
      for i = 1, cells do
        local head
        head, units[i], lags[i], place = struct.unpack(PACKED_CELL[form], raw, place)
        last, steps[i] = div(head, 16), head % 16
        indexes[i] = newest - last
        if units[i] < 1 or units[i] > MOST_UNITS[form] or last > CELLS[form] or lags[i] > paced(cell)
          or (i > 1 and indexes[i] <= indexes[i - 1]) then
          corrupt()
        end
      end
    end
    -- The last entry is the newest, and times are exact in a double.
    if last ~= 0 or newest * cell > MOST then
      corrupt()
    end
  end
  local function pack()
    if is_empty() then
      return ''
    end
    local parts = {}
    if form == TIMES then
      local newest = times[#times]
      parts[1] = struct.pack('<BI7', 0x88, newest)
      for i = 1, #times do
        parts[i + 1] = struct.pack('<I2', newest - times[i])
      end
    else
      local newest = indexes[#indexes]
      parts[1] = struct.pack('<BI5I7', 0x88 + form, pace, newest)
      for i = 1, #indexes do
        local head = (newest - indexes[i]) * 16 + steps[i]
        parts[i + 1] = struct.pack(PACKED_CELL[form], head, units[i], lags[i])
      end
    end
    return table.concat(parts)
  end
  local function advance()
    if form == TIMES then
      local newest, passed, held = div_up(now, cell), div(now, cell), times
      times = {}
      for i = 1, #held do
        -- Times after now move to now, because the clock stepped back.
        local at = math.min(held[i], newest)
        if at + grid_window > passed then
          times[#times + 1] = at
        end
      end
      return
    end
    -- The units of cells after now are charged again now, because the clock stepped back.
    local current, ahead, i = div(now, cell), 0, #indexes
    while i > 0 and indexes[i] > current do
      ahead = ahead + units[i]
      indexes[i], units[i], lags[i], steps[i] = nil, nil, nil, nil
      i = i - 1
    end
    drop_expired()
    if ahead > 0 then
      make_room(ahead, pace)
      add(ahead, now)
    end
  end

  if raw then
    load()
    advance()
  else
    use(TIMES, 0)
  end
  local held = used()
  local described = pack()
  return held + want.least <= want.count, function(charged, taken)
    if charged and want.kind == REFUND then
      refund(want.units)
    elseif charged then
      charge(want.units)
    elseif taken > 0 then
      charge(taken)
      described = pack()
    end
    if is_empty() then
      return false, now, held, 0, 0, described
    end
    local expires
    if form == TIMES then
      expires = (times[#times] + grid_window) * cell
    else
      expires = whole(#indexes)
    end
    return pack(), expires, held, 0, 0, described
  end, held
end
