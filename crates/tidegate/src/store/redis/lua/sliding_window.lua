-- sliding-window: cells with their lag, or up to 20 times. It matches algorithms/sliding_window/ of
-- tidegate-core, where the algorithm is explained.
--
-- Bytes of the log form: 0x88; the newest time in steps of the grid (7 bytes); for every unit,
-- oldest first, its distance from the newest time (2 bytes).
--
-- Bytes of the forms with 15, 7 and 3 cells: 0x89, 0x8a or 0x8b; the pace (5 bytes); the index of
-- the newest cell (7 bytes); for every cell, oldest first, 16 times its distance from the newest
-- cell plus its last hit (1 byte), its units (2, 3 or 5 bytes) and its lag (1, 3 or 5 bytes).

-- The number of cells in a window, the largest number of units and the bytes of a cell, by form; the
-- log form is 0.
local CELLS = { [0] = 0, 15, 7, 3 }
local MOST_UNITS = { [0] = 20, 2047, 2097151, 1099511627775 }
local CELL_BYTES = { [0] = 2, 4, 7, 11 }
local PACKED_CELL = { [0] = 'I2', 'BI2I1', 'BI3I3', 'BI5I5' }

-- The formats of stored states, by form and size. They are created on demand.
local window_formats = {}
local function window_format(form, size)
  local number = form * 32 + size
  local format = window_formats[number]
  if not format then
    local head = form == 0 and '<BI7' or '<BI5I7'
    format = head .. string.rep(PACKED_CELL[form], size)
    window_formats[number] = format
  end
  return format
end

-- All states and changes. sliding_window decides the common ones as this would, with less work.
local function any_sliding_window(window, count)
  local TIMES, WIDEST = 0, 3
  local LARGEST_LIMIT = { [0] = 20, 2000, 2000000 }
  local raw, changed, kept_until
  -- The state: its form and pace, and its `size` cells, oldest first. In the log form an index is a
  -- time in steps of the grid, and the other lists are not used.
  local form, pace, size = nil, nil, 0
  local indexes, units, lags, steps = {}, {}, {}, {}
  -- Derived from form and pace: the length of a tick of the pace, the window in ticks, the length
  -- of a cell (in the log form, of a step of its grid) and of a fifteenth of a cell, the window in
  -- steps of the grid, and the units that arrive at the pace in a cell.
  local tick, ticks, cell, step, grid_window, most_lag

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
    form, pace = new_form, new_pace
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
  local function last_offset(i)
    local offset = steps[i] * step
    return offset < cell and offset or cell
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
    local offset, i = at % cell, size
    local index, last = (at - offset) / cell, div_up(offset, step)
    if i == 0 or indexes[i] ~= index then
      i = i + 1
      size = i
      indexes[i], units[i], lags[i], steps[i] = index, 0, 0, 0
    end
    local lag = paced(offset) - units[i]
    if lag > lags[i] then
      lags[i] = lag < most_lag and lag or most_lag
    end
    units[i] = math.min(units[i] + added, MOST_UNITS[form])
    if last > steps[i] then
      steps[i] = last
    end
  end
  -- Removes the oldest `dropped` cells or times.
  local function drop(dropped)
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
    if dropped > 0 then
      drop(dropped)
    end
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
      elseif size > 0 and indexes[size] == (now - now % cell) / cell then
        held = units[size]
      end
      if held + added <= MOST_UNITS[form] then
        return
      end
      widen(new_pace)
    end
  end

  local function available()
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

  -- Reads a stored state, and rejects bytes that this script cannot have written.
  local function decode()
    local mark = string.byte(raw) or 0
    local new_form = mark - 0x88
    if new_form < TIMES or new_form > WIDEST then
      corrupt()
    end
    size = (#raw - (new_form == TIMES and 8 or 13)) / CELL_BYTES[new_form]
    if size < 1 or size % 1 ~= 0 or size > (new_form == TIMES and 20 or CELLS[new_form] + 1) then
      corrupt()
    end
    local numbers = { struct.unpack(window_format(new_form, size), raw) }
    local farther, newest = 65536, nil
    if new_form == TIMES then
      use(TIMES, 0)
      newest = numbers[2]
      for i = 1, size do
        local distance = numbers[i + 2]
        if distance > farther then
          corrupt()
        end
        farther = distance
        indexes[i] = newest - distance
      end
    else
      local held_pace = numbers[2]
      newest = numbers[3]
      if form_of(held_pace) > new_form then
        corrupt()
      end
      use(new_form, held_pace)
      local most_units, from = MOST_UNITS[form], 4
      for i = 1, size do
        local head, held, lag = numbers[from], numbers[from + 1], numbers[from + 2]
        local last = head % 16
        local distance = (head - last) / 16
        if held < 1 or held > most_units or lag > most_lag or distance >= farther
          or distance > CELLS[form] then
          corrupt()
        end
        farther, from = distance, from + 3
        indexes[i], units[i], lags[i], steps[i] = newest - distance, held, lag, last
      end
    end
    -- The last entry is the newest, and times are exact in a double.
    if farther ~= 0 or newest * cell > MOST then
      corrupt()
    end
  end

  local function advance()
    if form == TIMES then
      local newest, passed, dropped = div_up(now, cell), (now - now % cell) / cell, 0
      while dropped < size and math.min(indexes[dropped + 1], newest) + grid_window <= passed do
        dropped = dropped + 1
      end
      if dropped > 0 then
        drop(dropped)
      end
      -- Times after now move to now, because the clock stepped back.
      local i = size
      while i > 0 and indexes[i] > newest do
        indexes[i], changed = newest, true
        i = i - 1
      end
      return
    end
    -- The units of cells after now are charged again now, because the clock stepped back.
    local current, ahead = (now - now % cell) / cell, 0
    while size > 0 and indexes[size] > current do
      ahead, size, changed = ahead + units[size], size - 1, true
    end
    drop_expired()
    if ahead > 0 then
      make_room(ahead, pace)
      add(ahead, now)
    end
  end

  local function load(value)
    raw, changed, size, kept_until = value, false, 0, nil
    if not value then
      return count
    end
    decode()
    kept_until = stored_until(indexes[size])
    advance()
    return available()
  end

  -- Replaces the state by another one, which is not stored.
  local function replace(value)
    local before, before_until = raw, kept_until
    load(value)
    raw, changed, kept_until = before, true, before_until
  end

  local function charge(added)
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

  local function refund(taken)
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

  local function store(name)
    if size == 0 then
      return write(name, raw, false)
    elseif not changed then
      return raw, kept_until
    end
    local newest, numbers = indexes[size], { 0x88 + form, nil, nil }
    if form == TIMES then
      numbers[2] = newest
      for i = 1, size do
        numbers[i + 2] = newest - indexes[i]
      end
    else
      numbers[2], numbers[3] = pace, newest
      local to = 4
      for i = 1, size do
        numbers[to], numbers[to + 1] = (newest - indexes[i]) * 16 + steps[i], units[i]
        numbers[to + 2] = lags[i]
        to = to + 3
      end
    end
    local after = struct.pack(window_format(form, size), unpack(numbers))
    return write(name, raw, after, stored_until(newest), kept_until)
  end

  local function is_converted_by_charge()
    return size > 0 and (form < wanted_form or form ~= TIMES and pace ~= count)
  end

  return {
    load = load, replace = replace, available = available, charge = charge, refund = refund, store = store,
    is_converted_by_charge = is_converted_by_charge,
  }
end

-- Decides states that have the form and the pace of the limit, and are charged now. Their numbers
-- are kept as they are stored.
local function sliding_window(window, count)
  local form = count > 2000000 and 3 or count > 2000 and 2 or count > 20 and 1 or 0
  local mark, most_cells, most_units, cell_bytes = 0x88 + form, CELLS[form], MOST_UNITS[form], CELL_BYTES[form]
  -- The numbers of the state, the position of its last cell in them, and whether they differ from
  -- `raw`; the state in any form, if it is used in place of them.
  local raw, cells, last, changed, general, is_general, kept_until
  -- The units that are available, and whether only the last cell was changed.
  local room, is_last_only
  local cell_format = '<' .. PACKED_CELL[form]
  -- The length of a cell and of a fifteenth of it, the window in ticks of the pace, the current cell,
  -- the hit of a charge in it, and the units that arrive at the pace before the charge and in a cell.
  local cell, step, tick, ticks, current, hit, due, most_lag
  local since = now - window

  local function paced(us)
    local product = count * ((us - us % tick) / tick)
    return (product - product % ticks) / ticks
  end

  if form > 0 then
    cell = math.ceil(window / most_cells)
    step = math.ceil(cell / 15)
    -- The finest ticks for which the product of the window and the pace is exact. fmod is exact.
    local most = (MOST - math.fmod(MOST, count + 1)) / (count + 1)
    tick, ticks = 1, window
    while ticks > most do
      tick = tick * 10
      ticks = math.ceil(window / tick)
    end
    local offset = now % cell
    current, hit, due, most_lag = (now - offset) / cell, math.ceil(offset / step), paced(offset), paced(cell)
    if due > most_lag then
      due = most_lag
    end
  end

  -- Returns the position of the last cell of a value, as text. Redis takes long to format numbers.
  local offsets = {}
  local function last_offset(bytes)
    local text = offsets[bytes]
    if not text then
      text = tostring(bytes - cell_bytes)
      offsets[bytes] = text
    end
    return text
  end

  -- Continues with the state in any form.
  local function generalize()
    if is_general then
      return
    end
    general, is_general = general or any_sliding_window(window, count), true
    general.load(raw)
    if changed then
      general.replace(struct.pack(window_format(form, (last - 1) / 3), unpack(cells)))
    end
  end

  local function load(value)
    raw, changed, is_general, cells = value, false, false, nil
    if not value and form > 0 then
      room = count
      return count
    end
    local size = value and (#value - 13) / cell_bytes
    if form > 0 and string.byte(value) == mark and size % 1 == 0 and size > 0 and size <= most_cells + 1 then
      cells = { struct.unpack(window_format(form, size), value) }
      local newest = cells[3]
      -- Cells at this distance from the newest one, or farther, began a window ago or earlier.
      local border, farther, used = newest - since / cell, most_cells + 1, 0
      last = 1 + 3 * size
      if cells[2] ~= count or newest > current then
        cells = nil
      end
      for from = 4, cells and last or 0, 3 do
        local head, units, lag = cells[from], cells[from + 1], cells[from + 2]
        local distance = (head - head % 16) / 16
        if units < 1 or units > most_units or lag > most_lag or distance >= farther then
          corrupt()
        end
        farther, used = distance, used + units
        if distance >= border then
          local start = (newest - distance) * cell
          if start + math.min(head % 16 * step, cell) <= since then
            -- The cell has expired.
            cells = nil
            break
          end
          used = used - math.min(math.max(paced(since - start) - lag, 0), units)
        end
      end
      if cells then
        if farther ~= 0 then
          corrupt()
        end
        kept_until, room, is_last_only = (newest + 1) * cell + window, count - used, true
        return room
      end
    end
    is_general, general = true, general or any_sliding_window(window, count)
    return general.load(value)
  end

  local function available()
    return is_general and general.available() or room
  end

  local function charge(units)
    if is_general or units > most_units then
      generalize()
      return general.charge(units)
    end
    room = room - units
    if not cells then
      cells, last, kept_until = { mark, count, current, hit, units, due }, 4, nil
      is_last_only = false
    elseif cells[3] == current and cells[last + 1] + units <= most_units then
      local head, lag = cells[last], due - cells[last + 1]
      if hit > head then
        cells[last] = hit
      end
      if lag > cells[last + 2] then
        cells[last + 2] = lag
      end
      cells[last + 1] = cells[last + 1] + units
    elseif cells[3] ~= current and current - cells[3] <= most_cells - (cells[4] - cells[4] % 16) / 16 then
      local moved = (current - cells[3]) * 16
      for from = 4, last, 3 do
        cells[from] = cells[from] + moved
      end
      last, cells[3], is_last_only = last + 3, current, false
      cells[last], cells[last + 1], cells[last + 2] = hit, units, due
    else
      generalize()
      return general.charge(units)
    end
    changed = true
  end

  local function refund(units)
    generalize()
    general.refund(units)
  end

  local function store(name)
    if is_general then
      return general.store(name)
    elseif name and changed and is_last_only then
      local bytes = struct.pack(cell_format, cells[last], cells[last + 1], cells[last + 2])
      redis_call('SETRANGE', name, last_offset(#raw), bytes)
    elseif changed then
      local after = struct.pack(window_format(form, (last - 1) / 3), unpack(cells))
      return write(name, raw, after, (current + 1) * cell + window, kept_until)
    end
    return raw, kept_until
  end

  local function is_converted_by_charge()
    return is_general and general.is_converted_by_charge()
  end

  return {
    load = load, available = available, charge = charge, refund = refund, store = store,
    is_converted_by_charge = is_converted_by_charge,
  }
end
