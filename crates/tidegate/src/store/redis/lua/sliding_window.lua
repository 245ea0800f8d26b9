-- sliding-window: cells with their lag, or up to 20 times. It matches algorithms/sliding_window/ of
-- tidegate-core, where the algorithm is explained.
--
-- Bytes of the log form: 0x88; the newest time in steps of the grid (7 bytes); for every unit,
-- oldest first, its time modulo 65536 (2 bytes), which is more than the steps of a window.
--
-- Bytes of the forms with 15, 7 and 3 cells: 0x89, 0x8a or 0x8b; the pace (5 bytes); the index of
-- the newest cell (7 bytes); for every cell, oldest first, 16 times its index modulo 16 plus its last
-- hit (1 byte), its units (2, 3 or 5 bytes) and its lag (1, 3 or 5 bytes); the units of all cells (2,
-- 3 or 6 bytes). With their sum, most requests need to read only the oldest and the newest cell. The
-- others, and the sum, are checked by the node, which decodes the reply.

-- Returns the length of a step of the grid of the log form, 1, 2, 5, 10, 20, ... microseconds, and
-- the window in steps.
local function times_grid(window)
  local GROWTH, turn, step = { 2, 2.5, 2 }, 1, 1
  while window > 65535 * step do
    step = step * GROWTH[turn]
    turn = turn % 3 + 1
  end
  return step, math.ceil(window / step)
end

-- Returns the time until which a log is stored whose newest time expires at `expires`: the end of
-- that sixteenth of a window, so that most writes need not change the expiry.
local function times_until(expires, window)
  local grid = math.ceil(window / 16)
  return math.ceil(expires / grid) * grid
end

-- All states and changes. The functions below decide the common ones as this would, with less work.
local function any_sliding_window(window, count)
  local TIMES, WIDEST = 0, 3
  local LARGEST_LIMIT = { [0] = 20, 2000, 2000000 }
  -- The number of cells in a window, the largest number of units and the bytes of a cell and of the
  -- sum of units, by form; the log form is 0.
  local CELLS = { [0] = 0, 15, 7, 3 }
  local MOST_UNITS = { [0] = 20, 2047, 2097151, 1099511627775 }
  local CELL_BYTES = { [0] = 2, 4, 7, 11 }
  local SUM_BYTES = { [0] = 0, 2, 3, 6 }
  local PACKED_CELL = { [0] = 'I2', 'BI2I1', 'BI3I3', 'BI5I5' }
  local PACKED_SUM = { [0] = '', 'I2', 'I3', 'I6' }

  -- The formats of stored states, by form and size, which are created on demand.
  local window_formats = {}
  local function window_format(form, size)
    local number = form * 32 + size
    local format = window_formats[number]
    if not format then
      local head = form == 0 and '<BI7' or '<BI5I7'
      format = head .. string.rep(PACKED_CELL[form], size) .. PACKED_SUM[form]
      window_formats[number] = format
    end
    return format
  end
  local function div_up(a, b)
    a = a + b - 1
    return (a - a % b) / b
  end
  local raw, changed, kept_until
  -- The state: its form and pace, and its `size` cells, oldest first. In the log form an index is a
  -- time in steps of the grid, and the other lists are not used.
  local form, pace, size = nil, nil, 0
  local indexes, units, lags, steps = {}, {}, {}, {}
  -- Derived from form and pace: the length of a tick of the pace, the window in ticks, the length
  -- of a cell (in the log form, of a step of its grid) and of a fifteenth of a cell, the window in
  -- steps of the grid, and the units that arrive at the pace in a cell.
  local tick, ticks, cell, step, grid_window, most_lag

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
      cell, grid_window = times_grid(window)
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
  -- a window, so that most writes need not change the expiry.
  local function stored_until(newest)
    if form == TIMES then
      return times_until((newest + grid_window) * cell, window)
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
    size = (#raw - (new_form == TIMES and 8 or 13) - SUM_BYTES[new_form]) / CELL_BYTES[new_form]
    if size < 1 or size % 1 ~= 0 or size > (new_form == TIMES and 20 or CELLS[new_form] + 1) then
      corrupt()
    end
    local numbers = { unpack_numbers(window_format(new_form, size), raw) }
    local farther, newest = 65536, nil
    if new_form == TIMES then
      use(TIMES, 0)
      newest = numbers[2]
      for i = 1, size do
        local distance = (newest - numbers[i + 2]) % 65536
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
      local most_units, from, sum = MOST_UNITS[form], 4, 0
      for i = 1, size do
        local head, held, lag = numbers[from], numbers[from + 1], numbers[from + 2]
        local last = head % 16
        local distance = (newest - (head - last) / 16) % 16
        if held < 1 or held > most_units or lag > most_lag or distance >= farther
          or distance > CELLS[form] then
          corrupt()
        end
        farther, from, sum = distance, from + 3, sum + held
        indexes[i], units[i], lags[i], steps[i] = newest - distance, held, lag, last
      end
      if sum ~= numbers[from] then
        corrupt()
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
        numbers[i + 2] = indexes[i] % 65536
      end
    else
      numbers[2], numbers[3] = pace, newest
      local to, sum = 4, 0
      for i = 1, size do
        numbers[to], numbers[to + 1] = indexes[i] % 16 * 16 + steps[i], units[i]
        numbers[to + 2] = lags[i]
        to, sum = to + 3, sum + units[i]
      end
      numbers[to] = sum
    end
    local after = pack_numbers(window_format(form, size), unpack(numbers))
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

-- Decides logs of limits of at most 20 units. Times that have not expired stay in their stored bytes.
local function window_of_times(window, count)
  local mark, most_units = 0x88, 20
  local step, grid_window = times_grid(window)
  local time, passed = math.ceil(now / step), (now - now % step) / step
  -- The stored value, the time until which it is kept, and whether the state differs from it.
  local raw, kept_until, changed
  -- The newest time, the number of units, the position of the first one in `raw`, and the bytes of
  -- those that were added.
  local newest, size, from, added
  -- The state in any form, and whether it is used in place of these.
  local general, is_general

  local function pack_all()
    return pack_numbers('<BI7', mark, newest) .. (raw and string.sub(raw, from) or '') .. added
  end

  -- Continues with the state in any form.
  local function generalize()
    if is_general then
      return
    end
    general, is_general = general or any_sliding_window(window, count), true
    general.load(raw)
    if changed and size > 0 then
      general.replace(pack_all())
    end
  end

  local function load(value)
    raw, changed, size, from, added, is_general = value, false, 0, 9, '', false
    if not value then
      return count
    end
    size = (#value - 8) / 2
    if string.byte(value) == mark and size % 1 == 0 and size > 0 and size <= most_units then
      newest = unpack_numbers('<I7', value, 2)
      if unpack_numbers('<I2', value, #value - 1) ~= newest % 65536 then
        corrupt()
      end
      if newest <= time then
        kept_until = times_until((newest + grid_window) * step, window)
        -- Drops the times that have expired.
        while size > 0 do
          local distance = (newest - unpack_numbers('<I2', value, from)) % 65536
          if newest - distance + grid_window > passed then
            break
          end
          size, from, changed = size - 1, from + 2, true
        end
        return count - size
      end
    end
    is_general, general = true, general or any_sliding_window(window, count)
    return general.load(value)
  end

  local function available()
    return is_general and general.available() or count - size
  end

  local function charge(units)
    if is_general or size + units > most_units then
      generalize()
      return general.charge(units)
    end
    newest, size, changed = time, size + units, true
    added = added .. string.rep(pack_numbers('<I2', time % 65536), units)
  end

  local function refund(units)
    generalize()
    general.refund(units)
  end

  local function store(name)
    if is_general then
      return general.store(name)
    elseif size == 0 then
      return write(name, raw, false)
    elseif not changed then
      return raw, kept_until
    end
    return write(name, raw, pack_all(), times_until((newest + grid_window) * step, window), kept_until)
  end

  local function is_converted_by_charge()
    return is_general and general.is_converted_by_charge()
  end

  return {
    load = load, available = available, charge = charge, refund = refund, store = store,
    is_converted_by_charge = is_converted_by_charge,
  }
end

-- Decides states that have the form and the pace of the limit, and are charged now. Only the oldest
-- and the newest of their cells are read, and the bytes of the others are kept as they are.
local function window_of_cells(window, count)
  -- The numbers of the form, as in any_sliding_window. The newest cell and the sum of units are the
  -- tail of a value.
  local mark, most_cells, most_units, cell_bytes, cell_format = 0x89, 15, 2047, 4, '<BI2I1'
  local tail_format, tail_bytes = '<BI2I1I2', 6
  if count > 2000000 then
    mark, most_cells, most_units, cell_bytes, cell_format = 0x8b, 3, 1099511627775, 11, '<BI5I5'
    tail_format, tail_bytes = '<BI5I5I6', 17
  elseif count > 2000 then
    mark, most_cells, most_units, cell_bytes, cell_format = 0x8a, 7, 2097151, 7, '<BI3I3'
    tail_format, tail_bytes = '<BI3I3I3', 10
  end
  -- The length of a cell and of a fifteenth of it.
  local cell = math.ceil(window / most_cells)
  local step = math.ceil(cell / 15)
  -- The window in ticks of the pace: the finest ones for which its product with the pace is exact.
  -- fmod is exact.
  local tick, ticks, most = 1, window, (MOST - math.fmod(MOST, count + 1)) / (count + 1)
  while ticks > most do
    tick = tick * 10
    ticks = math.ceil(window / tick)
  end
  local function paced(us)
    local product = count * ((us - us % tick) / tick)
    return (product - product % ticks) / ticks
  end
  -- The current cell, the hit of a charge in it, and the units that arrive at the pace in a cell and
  -- before the charge.
  local offset, since = now % cell, now - window
  local current, hit, most_lag = (now - offset) / cell, math.ceil(offset / step), paced(cell)
  local due = math.min(paced(offset), most_lag)

  -- The stored value, the time until which it is kept, whether the state differs from it, and
  -- whether only in its tail.
  local raw, kept_until, changed, is_tail_only
  -- The newest cell: its index (false if the state is empty), last hit, units and lag; the units of
  -- all cells; the positions of the older cells in `raw`; the units that are available.
  local newest, last_hit, last_units, last_lag, sum, older_from, older_to, room
  -- The state in any form, and whether it is used in place of these.
  local general, is_general
  -- The length of the last value of which only the tail was written, and the position of its tail as
  -- text. Redis takes long to format numbers.
  local tail_of, tail_text

  local function pack_tail()
    return pack_numbers(tail_format, newest % 16 * 16 + last_hit, last_units, last_lag, sum)
  end

  local function pack_all()
    local older = raw and string.sub(raw, older_from, older_to) or ''
    return pack_numbers('<BI5I7', mark, count, newest) .. older .. pack_tail()
  end

  -- Continues with the state in any form.
  local function generalize()
    if is_general then
      return
    end
    general, is_general = general or any_sliding_window(window, count), true
    general.load(raw)
    if changed and newest then
      general.replace(pack_all())
    end
  end

  -- Drops the cells that have expired. Returns the units that have expired in the oldest one of the
  -- others.
  local function drop_expired(value)
    local tail = older_to + 1
    while true do
      local index, last, units, lag = newest, last_hit, last_units, last_lag
      if older_from < tail then
        local head
        head, units, lag = unpack_numbers(cell_format, value, older_from)
        last = head % 16
        index = newest - (newest - (head - last) / 16) % 16
        if index == newest or units < 1 or lag > most_lag then
          corrupt()
        end
      end
      local start = index * cell
      if start > since then
        return 0
      elseif start + math.min(last * step, cell) > since then
        return math.min(math.max(paced(since - start) - lag, 0), units)
      end
      sum, changed, is_tail_only = sum - units, true, false
      if older_from == tail then
        newest = false
        return 0
      end
      older_from = older_from + cell_bytes
    end
  end

  -- Reads a state. Returns false if its pace is not that of the limit, or if the clock stepped back.
  local function read(value)
    local _, pace, index = unpack_numbers('<BI5I7', value)
    if pace ~= count or index > current then
      return false
    end
    older_from, older_to = 14, #value - tail_bytes
    local head
    head, last_units, last_lag, sum = unpack_numbers(tail_format, value, older_to + 1)
    newest, last_hit, is_tail_only, kept_until = index, head % 16, true, (index + 1) * cell + window
    if (head - last_hit) / 16 ~= index % 16 or last_units < 1 or last_units > most_units or last_lag > most_lag then
      corrupt()
    end
    local expired = drop_expired(value)
    if sum < (newest and last_units or 0) then
      corrupt()
    end
    room = count - sum + expired
    return true
  end

  local function load(value)
    raw, changed, is_general, newest, room = value, false, false, false, count
    if not value then
      return count
    end
    local older = (#value - 13 - tail_bytes) / cell_bytes
    if string.byte(value) == mark and older % 1 == 0 and older >= 0 and older <= most_cells and read(value) then
      return room
    end
    is_general, general = true, general or any_sliding_window(window, count)
    return general.load(value)
  end

  local function available()
    return is_general and general.available() or room
  end

  local function charge(units)
    if is_general or units > most_units or newest == current and last_units + units > most_units then
      generalize()
      return general.charge(units)
    elseif newest == current then
      local lag = due - last_units
      if lag > last_lag then
        last_lag = lag
      end
      if hit > last_hit then
        last_hit = hit
      end
      last_units, sum = last_units + units, sum + units
    else
      if newest then
        -- The cell before it is now one of the older ones, of which none is farther than a window
        -- from the current one.
        older_to, sum = older_to + cell_bytes, sum + units
      else
        older_from, older_to, sum = 1, 0, units
      end
      newest, last_hit, last_units, last_lag, is_tail_only = current, hit, units, due, false
    end
    room, changed = room - units, true
  end

  local function refund(units)
    generalize()
    general.refund(units)
  end

  local function store(name)
    if is_general then
      return general.store(name)
    elseif not newest then
      return write(name, raw, false)
    elseif not changed then
      return raw, kept_until
    elseif name and is_tail_only then
      if #raw ~= tail_of then
        tail_of, tail_text = #raw, tostring(#raw - tail_bytes)
      end
      redis_call('SETRANGE', name, tail_text, pack_tail())
    else
      return write(name, raw, pack_all(), (newest + 1) * cell + window, kept_until)
    end
  end

  local function is_converted_by_charge()
    return is_general and general.is_converted_by_charge()
  end

  return {
    load = load, available = available, charge = charge, refund = refund, store = store,
    is_converted_by_charge = is_converted_by_charge,
  }
end

local function sliding_window(window, count)
  if count <= 20 then
    return window_of_times(window, count)
  end
  return window_of_cells(window, count)
end
