-- sliding-window: cells with their lag, or up to 20 times. It matches algorithms/sliding_window/ of
-- tidegate-core, where the algorithm is explained.
--
-- Bytes of the log form: 0x88; the newest time in steps of the grid (7 bytes); for every unit,
-- oldest first, its distance from the newest time (2 bytes).
--
-- Bytes of the forms with 15, 7 and 3 cells: 0x89, 0x8a or 0x8b; the pace (5 bytes); the index of
-- the newest cell (7 bytes); for every cell, oldest first, 16 times its distance from the newest
-- cell plus its last hit (1 byte), its units (2, 3 or 5 bytes) and its lag (1, 3 or 5 bytes).
local function sliding_window(limit)
  local TIMES, WIDEST = 0, 3
  local CELLS = { 15, 7, 3 }
  local LARGEST_LIMIT = { [0] = 20, 2000, 2000000 }
  local MOST_UNITS = { [0] = 20, 2047, 2097151, 1099511627775 }
  local PACKED_CELL = { [0] = 'I2', 'BI2I1', 'BI3I3', 'BI5I5' }
  local CELL_BYTES = { 4, 7, 11 }
  local window, count = limit.window, limit.count
  local raw, changed, kept_until
  -- The state: its form and pace, and its `size` cells, oldest first. In the log form an index is a
  -- time in steps of the grid, and the other lists are not used.
  local form, pace, size = nil, nil, 0
  local indexes, units, lags, steps = {}, {}, {}, {}
  -- Derived from form and pace: the length of a tick of the pace, the window in ticks, the length
  -- of a cell (in the log form, of a step of its grid) and of a fifteenth of a cell, the window in
  -- steps of the grid, and the units that arrive at the pace in a cell.
  local tick, ticks, cell, step, grid_window, most_lag
  -- The formats of states by their size, for `form`.
  local formats
  local all_formats = { [0] = {}, {}, {}, {} }
  local self = {}

  local function div(a, b)
    return (a - a % b) / b
  end
  local function div_up(a, b)
    a = a + b - 1
    return (a - a % b) / b
  end
  -- Returns the units that arrive at the pace in `us` microseconds.
  local function paced(us)
    local product = pace * ((us - us % tick) / tick)
    return (product - product % ticks) / ticks
  end
  local function use(new_form, new_pace)
    if form == new_form and pace == new_pace then
      return
    end
    form, pace, formats = new_form, new_pace, all_formats[new_form]
    if form == TIMES then
      -- 1, 2, 5, 10, 20, ...
      local GROWTH, turn = { 2, 2.5, 2 }, 1
      cell = 1
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
    most_lag = paced(cell)
  end
  local function form_of(number)
    local found = TIMES
    while found < WIDEST and number > LARGEST_LIMIT[found] do
      found = found + 1
    end
    return found
  end
  local wanted_form = form_of(count)
  -- Returns the format of everything behind the mark.
  local function format_of(cells)
    local format = formats[cells]
    if not format then
      local head = form == TIMES and '<I7' or '<I5I7'
      format = head .. string.rep(PACKED_CELL[form], cells)
      formats[cells] = format
    end
    return format
  end

  local function last_offset(i)
    return math.min(steps[i] * step, cell)
  end
  -- Returns the time at which the last unit of a cell is a window old.
  local function whole(i)
    return indexes[i] * cell + last_offset(i) + window
  end
  -- Returns the time until which a state is stored, from its newest index: the end of that cell and
  -- a window, so that most writes need not change the expiry. In the log form, it is the end of the
  -- sixteenth of a window in which the newest time expires.
  local function stored_until(newest)
    if form == TIMES then
      local grid = div_up(window, 16)
      return div_up((newest + grid_window) * cell, grid) * grid
    end
    return (newest + 1) * cell + window
  end

  local function add(added, at)
    changed = true
    if form == TIMES then
      local time = div_up(at, cell)
      for _ = 1, added do
        size = size + 1
        indexes[size] = time
      end
      return
    end
    local offset = at % cell
    local index = (at - offset) / cell
    local i = size
    if i == 0 or indexes[i] ~= index then
      i = i + 1
      size = i
      indexes[i], units[i], lags[i], steps[i] = index, 0, 0, 0
    end
    lags[i] = math.min(math.max(lags[i], paced(offset) - units[i]), most_lag)
    units[i] = math.min(units[i] + added, MOST_UNITS[form])
    steps[i] = math.max(steps[i], div_up(offset, step))
  end
  -- Removes the oldest `dropped` cells or times.
  local function drop(dropped)
    if dropped == 0 then
      return
    end
    changed, size = true, size - dropped
    for i = 1, size do
      local from = i + dropped
      indexes[i], units[i], lags[i], steps[i] = indexes[from], units[from], lags[from], steps[from]
    end
  end
  -- Removes cells whose last unit is a window old.
  local function drop_expired()
    local dropped = 0
    while dropped < size and whole(dropped + 1) <= now do
      dropped = dropped + 1
    end
    drop(dropped)
  end
  -- Charges all held units again in the next wider form, under another pace.
  local function widen(new_pace)
    local at, held, cells = {}, {}, size
    for i = 1, cells do
      if form == TIMES then
        at[i], held[i] = indexes[i] * cell, 1
      else
        at[i], held[i] = whole(i) - window, units[i]
      end
    end
    size = 0
    use(form + 1, new_pace)
    for i = 1, cells do
      add(held[i], math.min(at[i], now))
    end
    -- The log holds units up to a step of its grid longer than a window, so their cell may have
    -- expired.
    drop_expired()
  end
  local function make_room(added, new_pace)
    while form < WIDEST do
      local held = 0
      if form == TIMES then
        held = size
      elseif size > 0 and indexes[size] == div(now, cell) then
        held = units[size]
      end
      if held + added <= MOST_UNITS[form] then
        return
      end
      widen(new_pace)
    end
  end

  -- Reads the log form, and rejects bytes that this script cannot have written.
  local function load_times()
    use(TIMES, 0)
    size = (#raw - 8) / 2
    if size < 1 or size % 1 ~= 0 or size > 20 then
      corrupt()
    end
    local numbers = { struct.unpack(format_of(size), raw, 2) }
    local newest, farther = numbers[1], 65536
    for i = 1, size do
      local distance = numbers[i + 1]
      if distance > farther then
        corrupt()
      end
      farther = distance
      indexes[i] = newest - distance
    end
    if farther ~= 0 or newest * cell > MOST then
      corrupt()
    end
  end
  -- Reads a form with cells, and rejects bytes that this script cannot have written.
  local function load_cells(new_form)
    size = (#raw - 13) / CELL_BYTES[new_form]
    if size < 1 or size % 1 ~= 0 or size > CELLS[new_form] + 1 then
      corrupt()
    end
    formats = all_formats[new_form]
    local old_form = form
    form = new_form
    local numbers = { struct.unpack(format_of(size), raw, 2) }
    form = old_form
    local held_pace, newest = numbers[1], numbers[2]
    if form_of(held_pace) > new_form then
      corrupt()
    end
    use(new_form, held_pace)
    local most_units, farther, from = MOST_UNITS[form], CELLS[form] + 1, 3
    for i = 1, size do
      local head, held, lag = numbers[from], numbers[from + 1], numbers[from + 2]
      local last = head % 16
      local distance = (head - last) / 16
      if held < 1 or held > most_units or lag > most_lag or distance >= farther then
        corrupt()
      end
      farther, from = distance, from + 3
      indexes[i], units[i], lags[i], steps[i] = newest - distance, held, lag, last
    end
    -- The last cell is the newest, and times are exact in a double.
    if farther ~= 0 or newest * cell > MOST then
      corrupt()
    end
  end

  local function advance()
    if form == TIMES then
      local newest, passed, dropped = div_up(now, cell), div(now, cell), 0
      while dropped < size and math.min(indexes[dropped + 1], newest) + grid_window <= passed do
        dropped = dropped + 1
      end
      drop(dropped)
      -- Times after now move to now, because the clock stepped back.
      local i = size
      while i > 0 and indexes[i] > newest do
        indexes[i], changed = newest, true
        i = i - 1
      end
      return
    end
    -- The units of cells after now are charged again now, because the clock stepped back.
    local current, ahead = div(now, cell), 0
    while size > 0 and indexes[size] > current do
      ahead, size, changed = ahead + units[size], size - 1, true
    end
    drop_expired()
    if ahead > 0 then
      make_room(ahead, pace)
      add(ahead, now)
    end
  end

  function self.load(value)
    raw, changed, size, kept_until = value, false, 0, nil
    if not value then
      return
    end
    local mark = string.byte(value)
    if mark == 0x88 then
      load_times()
    elseif mark and mark > 0x88 and mark < 0x8c then
      load_cells(mark - 0x88)
    else
      corrupt()
    end
    kept_until = stored_until(indexes[size])
    advance()
  end

  function self.available()
    if size == 0 or form == TIMES then
      return count - size
    end
    local used, since = 0, now - window
    for i = 1, size do
      used = used + units[i]
      local passed = since - indexes[i] * cell
      if passed > 0 then
        local expired = paced(passed) - lags[i]
        if expired > 0 then
          used = used - math.min(expired, units[i])
        end
      end
    end
    return count - used
  end

  function self.charge(added)
    if size == 0 then
      use(wanted_form, count)
    end
    while form < wanted_form do
      widen(count)
    end
    make_room(added, count)
    if form ~= TIMES and pace ~= count then
      use(form, count)
      for i = 1, size do
        lags[i] = paced(last_offset(i))
      end
    end
    add(added, now)
  end

  function self.refund(taken)
    changed = true
    while taken > 0 and size > 0 do
      local from = form == TIMES and 1 or math.min(taken, units[size])
      taken = taken - from
      if form ~= TIMES then
        units[size] = units[size] - from
      end
      if form == TIMES or units[size] == 0 then
        size = size - 1
      end
    end
  end

  function self.store(name)
    if size == 0 then
      return write(name, raw, false)
    elseif not changed then
      return
    end
    local newest, numbers = indexes[size], {}
    if form == TIMES then
      numbers[1] = newest
      for i = 1, size do
        numbers[i + 1] = newest - indexes[i]
      end
    else
      numbers[1], numbers[2] = pace, newest
      local to = 3
      for i = 1, size do
        numbers[to], numbers[to + 1] = (newest - indexes[i]) * 16 + steps[i], units[i]
        numbers[to + 2] = lags[i]
        to = to + 3
      end
    end
    local after = string.char(0x88 + form) .. struct.pack(format_of(size), unpack(numbers))
    write(name, raw, after, stored_until(newest), kept_until)
  end

  return self
end
