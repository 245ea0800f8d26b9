-- States with open grants: units that are out on nodes. It matches lease/store.rs of tidegate-core,
-- where the rules are explained.
--
-- Bytes: 0x8c; the bytes of the state, none if it is empty; for every open grant, in the order of
-- their deadlines, its id, units and deadline (7 bytes each) and its duration (3 bytes); the number
-- of open grants (1 byte). The last byte is not 0, unlike that of a summary.
--
-- The other algorithms reject the first byte, and request.lua decides an entry again that failed for
-- this reason. So keys without grants cost nothing more.

-- Creates a state with grants of the limit that is encoded at a position of `bytes`.
local function leased(bytes, position)
  local GRANTED = 0x8c
  local algorithm, window, count = unpack_numbers(LIMIT_FORMAT, bytes, position)
  -- The bounds of lease/mod.rs: of grants, units, and durations in microseconds.
  local MOST_GRANTS, MOST_GRANTED, SHORTEST, LONGEST = 64, 1000000000000, 1000, 10000000
  local GRANT_FORMAT, GRANT_BYTES = '<I7I7I7I3', 24
  -- The stored value, the state without the held units, the open grants in the order of their
  -- deadlines, and the sum of their units.
  local raw, state, grants, held

  local function create()
    return create_state(unpack_numbers(LIMIT_FORMAT, bytes, position))
  end

  local function is_before(one, other)
    if one.deadline ~= other.deadline then
      return one.deadline < other.deadline
    end
    return one.id < other.id
  end

  -- Reads the grants. Returns the bytes of the state, or false if it is empty.
  local function decode(value)
    if not value or string.byte(value) ~= GRANTED then
      return value
    end
    local number = string.byte(value, -1)
    local first = #value - number * GRANT_BYTES
    if number < 1 or number > MOST_GRANTS or first < 2 then
      corrupt()
    end
    for i = 1, number do
      local id, units, deadline, duration =
        unpack_numbers(GRANT_FORMAT, value, first + (i - 1) * GRANT_BYTES)
      if units < 1 or units > MOST_GRANTED or duration < SHORTEST or duration > LONGEST
        or id >= MOST or deadline >= MOST or deadline < duration then
        corrupt()
      end
      grants[i], held = { id = id, units = units, deadline = deadline, duration = duration }, held + units
    end
    return first > 2 and string.sub(value, 2, first - 1)
  end

  -- Charges the units of grants whose deadline has passed at the time `current`, each at its
  -- deadline, to which it moves the clock. Returns the bytes of the state.
  local function charge_ended(inner, current)
    while grants[1] and grants[1].deadline < current do
      local grant = table.remove(grants, 1)
      now, held = grant.deadline, held - grant.units
      local past = create()
      past.load(inner)
      past.charge(grant.units)
      inner = past.store()
    end
    return inner
  end

  local function available()
    return state.available() - held
  end

  local function load(value)
    raw, grants, held = value, {}, 0
    local inner, is_moved = decode(value), false
    state = create()
    state.load(inner)
    for _, grant in ipairs(grants) do
      if grant.deadline - grant.duration > now then
        -- The clock stepped back: the units are held for the whole duration again.
        grant.deadline, is_moved = now + grant.duration, true
      end
    end
    if is_moved then
      table.sort(grants, is_before)
    end
    if grants[1] and grants[1].deadline < now then
      local current, is_done = now, nil
      is_done, inner = pcall(charge_ended, inner, current)
      now = current
      if not is_done then
        error(inner, 0)
      end
      state = create()
      state.load(inner)
    end
    return available()
  end

  local function charge(units)
    state.charge(units)
  end

  local function refund(units)
    state.refund(units)
  end

  local function is_converted_by_charge()
    return state.is_converted_by_charge and state.is_converted_by_charge()
  end

  -- Forgets what was counted. Units that are out stay held.
  local function reset()
    state = create()
    state.load(false)
  end

  -- Returns the longest duration of a grant now; 0 if none is possible.
  local function longest()
    local most = window
    if algorithm == 5 or algorithm == 1 and count <= 20 then
      most = 0
    elseif algorithm == 2 or algorithm == 3 then
      -- The deadline is the last microsecond of the aligned window.
      most = window - 1 - now % window
    end
    return most < SHORTEST and 0 or math.min(most, LONGEST)
  end

  -- Grants units to a node, as many as are requested and available, and at most the available units
  -- divided by the divisor, rounded up. Does nothing if no grant is possible.
  local function grant(id, units, duration, divisor)
    local left = math.max(available(), 0)
    local share = left + divisor - 1
    share = (share - share % divisor) / divisor
    units, duration = math.min(units, share, MOST_GRANTED), math.min(duration, longest())
    local deadline = now + duration
    if units < 1 or duration < SHORTEST or deadline >= MOST or #grants >= MOST_GRANTS then
      return
    end
    for _, other in ipairs(grants) do
      if other.id == id then
        return
      end
    end
    grants[#grants + 1] = { id = id, units = units, deadline = deadline, duration = duration }
    table.sort(grants, is_before)
    held = held + units
  end

  -- Takes back the units of a grant that its node does not keep.
  local function give_back(id, keep)
    for i, open in ipairs(grants) do
      if open.id == id and open.units > keep then
        held, open.units = held - (open.units - keep), keep
        if keep == 0 then
          table.remove(grants, i)
        end
        return
      end
    end
  end

  -- A value with grants is kept for up to two windows longer than its state has an effect.
  local function store(name)
    local inner, expires = state.store()
    if not grants[1] then
      return write(name, raw, inner, expires)
    end
    local parts = { string.char(GRANTED), inner or '' }
    for i, open in ipairs(grants) do
      parts[i + 2] = pack_numbers(GRANT_FORMAT, open.id, open.units, open.deadline, open.duration)
    end
    parts[#parts + 1] = string.char(#grants)
    expires = math.max(expires or 0, grants[#grants].deadline)
    if algorithm == 4 and count > 0 then
      -- The held units are a debt from their deadlines on.
      expires = expires + math.ceil(held / count) * window
    end
    -- The expiry depends on the limit, so it is set also if the value is unchanged.
    return write(name, nil, table.concat(parts), expires + 2 * window)
  end

  return {
    load = load, available = available, charge = charge, refund = refund, store = store,
    reset = reset, grant = grant, give_back = give_back,
    is_converted_by_charge = is_converted_by_charge,
  }
end
