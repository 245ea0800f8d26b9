-- Decides requests. An entry is a list of requests on the same states; its states are read once,
-- charged by its requests in order, and written once. A request charges all of its states or none.
-- The exception is a denial that consumes the units that are left.
--
-- KEYS     for every entry the keys of its states, all different, and the key of its idempotency id,
--          if it has one
-- ARGV     1 the time in microseconds, or '' for the server's time
--          2 and later: a group each, which is a list of entries under the same limits:
--              mode (1 byte): 0 decide, 1 dry run, 2 undo, 3 deny and consume
--              number of states of each entry, and of entries (2 bytes each)
--              requests (1 byte): 0 each entry has its own; 1 all have the same, which follow once;
--                2 each has one plain request for one unit of every state, none of which is replied
--                as a summary or in two entries, and no requests follow
--              length of the costs that are remembered under an id, or 0 without an id (2 bytes).
--                A group with an id has one entry
--              for every state the limit: algorithm (1 byte, the numbers of script.rs), window,
--                count, capacity, cap, tick, ticks, and the radix of a sliding-counter (else 0)
--              for every entry its number of runs of equal requests (2 bytes) and the runs:
--                the number of requests (4 bytes), 1 for plain requests or 0 (1 byte); if they are
--                plain, their units for every state; otherwise the permit, and for every state
--                  kind of cost (1 byte): 0 ask, 1 force, 2 refund
--                  role (1 byte): 0 enforced; 1 observed, which never denies; 2 enforced, and a
--                    denial consumes the units that are left, at most those requested; above 2
--                    observed, and charged only if all states of the same role admit the request
--                  units
--              with an id: the costs, and the time in microseconds for which the id is remembered
--            Numbers without a size are 8 bytes, and all are little-endian. Plain requests are to be
--            decided (mode 0), ask for at least one unit of every state, all of which are enforced,
--            and do not consume
-- returns  an array: the time, then for every entry the value of each state from before its
--          requests (nil if it does not exist). For a sliding-log and for permits it is instead a
--          summary for every run, three numbers that the file of the algorithm describes: from
--          before an ask, and after a forced charge or a refund. The third one applies to a denial,
--          after the run has charged what it could. A log with grants is replied whole, however
--          (see leased.lua): its last byte is not 0.
--          If each entry has one request for one unit, the values of the group are an array.
--          An entry with an id has a single value instead: the time, and for each state its role,
--          the length (4 bytes) and the bytes of its value; empty if the id was used for other
--          costs. An entry that failed has an error in place of its first value, and was not written
local SAME, UNIT = 1, 2
local KEYS, replies = KEYS, { now }
-- The states of the group; see algorithms.lua.
local states = {}

-- The numbers of keys and of replies of all entries before the current one, the number of entries of
-- the group that are left, and the position of the next bytes to read in the group.
local used, filled, left, position = 0, 1, 0, 1
-- The runs of the current entry.
local current

-- Functions that many calls do not need.
local function create_rare()
  -- The kinds of cost and the roles of states. The mode 3, deny and consume, is not one of the modes
  -- here: it admits nothing and writes what it consumes.
  local ASK, REFUND, OBSERVED, CONSUMES = 0, 2, 1, 2
  local DECIDE, DRY, UNDO = 0, 1, 2
  -- The first byte of a state with grants, and the number under which it is created.
  local GRANTED, LEASED = 0x8c, 6
  local self = {}

  -- Reads the runs of an entry.
  function self.read_runs(group, position, number)
    local runs, length = {}, nil
    length, position = unpack_numbers('<I2', group, position)
    for i = 1, length do
      local run = { units = {} }
      local is_plain
      run.times, is_plain, position = unpack_numbers('<I4B', group, position)
      if is_plain == 0 then
        run.kinds, run.roles = {}, {}
        run.permit, position = unpack_numbers('<I8', group, position)
      end
      for state = 1, number do
        if run.kinds then
          run.kinds[state], run.roles[state], position = unpack_numbers('<BB', group, position)
        end
        run.units[state], position = unpack_numbers('<I8', group, position)
      end
      runs[i] = run
    end
    return runs, position
  end

  -- Appends the summary of a state to those of earlier runs.
  local function summarize(values, at, total, newest, freed)
    values[at] = (values[at] or '') .. pack_numbers('<I8I8I8', total, newest, freed)
  end

  -- Charges as many of `times` plain requests as all states have room for. Returns their number.
  local function charge_fitting(number, asked, times)
    for i = 1, number do
      local room, units = states[i].available(), asked[i]
      if room < times * units then
        times = math.max((room - room % units) / units, 0)
      end
    end
    for i = 1, times > 0 and number or 0 do
      states[i].charge(times * asked[i])
    end
    return times
  end

  -- Decides a run of plain requests at once: each of them is admitted while all states have room.
  -- Returns whether it charged something.
  function self.decide_plain(number, run, values, offset)
    local asked, totals, newests, is_converted = run.units, {}, {}, false
    for i = 1, number do
      local state = states[i]
      if state.summary then
        totals[i], newests[i] = state.summary()
      end
      is_converted = is_converted or state.is_converted_by_charge and state.is_converted_by_charge()
    end
    local times
    if is_converted and run.times > 1 then
      -- After the first charge fewer requests may fit.
      times = charge_fitting(number, asked, 1)
      if times > 0 then
        times = 1 + charge_fitting(number, asked, run.times - 1)
      end
    else
      times = charge_fitting(number, asked, run.times)
    end
    for i = 1, number do
      if totals[i] then
        local freed = times < run.times and states[i].freed_by(asked[i]) or 0
        summarize(values, offset + i, totals[i], newests[i], freed)
      end
    end
    return times > 0
  end

  -- Decides any single request. Returns whether it charged something.
  function self.decide_any(number, run, values, offset, mode)
    local admitted, consumed, rooms, fits = mode == DECIDE or mode == UNDO, false, {}, {}
    -- The roles of groups of which a state denies the request.
    local denied = {}
    for i = 1, number do
      local role = run.roles[i]
      -- A peek is decided as a request for one unit.
      rooms[i] = states[i].available()
      fits[i] = run.kinds[i] ~= ASK or rooms[i] >= math.max(run.units[i], 1)
      admitted = admitted and (fits[i] or role == OBSERVED or role > CONSUMES)
      denied[role] = denied[role] or role > CONSUMES and not fits[i]
    end
    for i = 1, number do
      fits[i] = fits[i] and not denied[run.roles[i]]
      local kind, units, total, newest = run.kinds[i], run.units[i], nil, nil
      if states[i].summary and kind == ASK then
        total, newest = states[i].summary()
      end
      if admitted and fits[i] and kind == REFUND then
        states[i].refund(units)
      elseif admitted and fits[i] and units > 0 then
        states[i].charge(units, run.permit)
      elseif run.roles[i] == CONSUMES and not admitted and mode ~= DRY then
        local taken = math.max(math.min(units, rooms[i]), 0)
        if taken > 0 then
          states[i].charge(taken)
          consumed = true
        end
      end
      if total then
        local is_denied = not (admitted and fits[i])
        local freed = is_denied and states[i].freed_by(math.max(units, 1)) or 0
        summarize(values, offset + i, total, newest, freed)
      elseif states[i].summary then
        total, newest = states[i].summary()
        summarize(values, offset + i, total, newest, 0)
      end
    end
    return admitted or consumed
  end

  -- Decides the runs of an entry whose state i is at KEYS[used + i]. Sets the reply for it at
  -- values[offset + i]. Returns whether a request charged something.
  function self.decide_runs(number, runs, used, mode, values, offset)
    for i = 1, number do
      key = KEYS[used + i]
      local value = redis_call('GET', key)
      states[i].load(value)
      values[offset + i] = not states[i].summary and value
    end
    local charged = false
    for i = 1, #runs do
      local run, did = runs[i], nil
      if run.kinds then
        did = self.decide_any(number, run, values, offset, mode)
      else
        did = self.decide_plain(number, run, values, offset)
      end
      charged = charged or did
    end
    if mode ~= DRY then
      for i = 1, number do
        states[i].store(KEYS[used + i])
      end
    end
    return charged
  end

  -- Returns the value under an id, the reply that is repeated byte for byte while the id is
  -- remembered, and whether it was given to other costs.
  local function recall(id, costs, mode)
    if mode == DRY or mode == UNDO then
      return
    end
    key = id
    local remembered = redis_call('GET', id)
    if not remembered then
      return
    end
    if #remembered < 17 or string.byte(remembered) ~= 0x87 then
      corrupt()
    end
    local since, period, length, start = unpack_numbers('<I7I7I2', remembered, 2)
    if since > now then
      -- The clock stepped back: the period starts again.
      since = now
      local again = pack_numbers('<BI7I7I2', 0x87, since, period, length)
      write(id, remembered, again .. string.sub(remembered, start), since + period)
    end
    if since + period > now then
      local is_other = string.sub(remembered, start, start + length - 1) ~= costs
      return remembered, string.sub(remembered, start + length), is_other
    end
    return remembered
  end

  -- Decides the only request of an entry with an id. Returns its reply.
  function self.decide_with_id(number, runs, used, mode, costs, period)
    local id = KEYS[used + number + 1]
    local remembered, reply, is_other = recall(id, costs, mode)
    if reply then
      return is_other and '' or reply
    end
    local values = {}
    local charged = self.decide_runs(number, runs, used, mode, values, 0)
    reply = pack_numbers('<I8', now)
    local roles = runs[1].roles
    for i = 1, number do
      local value = values[i] or ''
      reply = reply .. pack_numbers('<BI4', roles and roles[i] or 0, #value) .. value
    end
    if mode == UNDO then
      redis_call('DEL', id)
    elseif charged and mode ~= DRY then
      local record = pack_numbers('<BI7I7I2', 0x87, now, period, #costs) .. costs .. reply
      write(id, remembered, record, now + period)
    elseif remembered then
      -- The id has expired.
      redis_call('DEL', id)
    end
    return reply
  end

  -- Decides the current entry.
  function self.decide_entry(number, group, mode, id_bytes)
    if id_bytes > 0 then
      local costs = string.sub(group, position, position + id_bytes - 1)
      local period = unpack_numbers('<I8', group, position + id_bytes)
      replies[filled + 1] = self.decide_with_id(number, current, used, mode, costs, period)
      used, filled = used + number + 1, filled + 1
    else
      self.decide_runs(number, current, used, mode, replies, filled)
      used, filled = used + number, filled + number
    end
    left = left - 1
  end

  -- Decides the entries that are left of a group.
  function self.decide_entries(number, group, mode, runs, id_bytes)
    while left > 0 do
      current = runs
      if not current then
        current, position = self.read_runs(group, position, number)
      end
      self.decide_entry(number, group, mode, id_bytes)
    end
  end

  -- Decides the current entry of a group with one request for one unit of every state, of which at
  -- least one has grants.
  function self.decide_leased_unit(number, values, offset)
    local run = { times = 1, units = {} }
    for i = 1, number do
      run.units[i] = 1
    end
    self.decide_runs(number, { run }, used, DECIDE, values, offset)
    used, left = used + number, left - 1
  end

  -- Decides an entry that failed once more, if values of its states have grants: such values are
  -- rejected before the first write of an entry. `decide` decides the entry. Returns whether it did,
  -- and otherwise why not.
  function self.decide_leased(problem, number, group, first, decide, ...)
    local plain, is_leased = {}, false
    for i = 1, number do
      local value = redis.pcall('GET', KEYS[first + i])
      plain[i] = states[i]
      if type(value) == 'string' and string.byte(value) == GRANTED then
        states[i], is_leased = create_state(LEASED, group, 9 + (i - 1) * LIMIT_BYTES), true
      end
    end
    local is_done = false
    if is_leased then
      is_done, problem = pcall(decide, ...)
    end
    for i = 1, number do
      states[i] = plain[i]
    end
    return is_done, problem
  end

  -- Returns the error of an entry as a reply. An error of a command begins with its code, except in
  -- Redis before 7.0.
  function self.failed(problem)
    local text = type(problem) == 'table' and problem.err or tostring(problem)
    return redis.error_reply(string.find(text, '^%u+ ') and text or 'ERR ' .. text)
  end

  return self
end

local rare

-- Decides entries with one request each, for one unit of every state. It does the same as
-- decide_runs, with less work for each state: all were read at once, and their values are `values`.
local function decide_units(number, values, total)
  while left > 0 do
    local at, fits = (total - left) * number, true
    for i = 1, number do
      local value = values[at + i]
      key = KEYS[used + i]
      if not value then
        -- Fails if the value has another type than a string.
        redis_call('GET', key)
      end
      fits = states[i].load(value) >= 1 and fits
    end
    -- A charge may find that a value is not a state, so it precedes the first write.
    for i = 1, fits and number or 0 do
      states[i].charge(1)
    end
    for i = 1, number do
      states[i].store(KEYS[used + i])
    end
    used, left = used + number, left - 1
  end
end

for argument = 2, #ARGV do
  local group = ARGV[argument]
  local mode, number, requests, id_bytes
  mode, number, left, requests, id_bytes, position = unpack_numbers('<BI2I2BI2', group)
  for i = 1, number do
    states[i] = create_state(unpack_numbers(LIMIT_FORMAT, group, position))
    position = position + LIMIT_BYTES
  end
  if requests == UNIT then
    local values, total = redis_call('MGET', unpack(KEYS, used + 1, used + left * number)), left
    replies[filled + 1], filled = values, filled + 1
    while left > 0 do
      local is_done, problem = pcall(decide_units, number, values, total)
      if not is_done then
        -- Only the current entry has failed.
        rare = rare or create_rare()
        local offset = (total - left) * number
        is_done, problem = rare.decide_leased(
          problem, number, group, used, rare.decide_leased_unit, number, values, offset)
        if not is_done then
          values[offset + 1] = rare.failed(problem)
          used, left = used + number, left - 1
        end
      end
    end
  else
    rare = rare or create_rare()
    local runs
    if requests == SAME then
      runs, position = rare.read_runs(group, position, number)
    end
    local has_id = id_bytes > 0
    while left > 0 do
      local is_done, problem = pcall(rare.decide_entries, number, group, mode, runs, id_bytes)
      if not is_done then
        is_done, problem = rare.decide_leased(
          problem, number, group, used, rare.decide_entry, number, group, mode, id_bytes)
      end
      if not is_done then
        replies[filled + 1] = rare.failed(problem)
        for i = 2, has_id and 1 or number do
          replies[filled + i] = false
        end
        used = used + (has_id and number + 1 or number)
        filled, left = filled + (has_id and 1 or number), left - 1
      end
    end
  end
end
return replies
