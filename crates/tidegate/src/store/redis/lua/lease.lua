-- Grants units of states to nodes, takes units back, and resets states.
--
-- KEYS     the keys of the states, all different
-- ARGV     1 the time in microseconds, or '' for the server's time
--          2 and later: for every state its limit, as in request.lua, and its operations in order:
--              kind (1 byte): 0 grant, 1 give back, 2 reset, which is the only operation
--              grant: the id, the most units, the longest duration, and the divisor
--              give back: the id, and the units that the node keeps
--            Numbers without a size are 8 bytes, and all are little-endian
-- returns  an array: the time, then for every state its value from before the operations (nil if it
--          does not exist), or an error if its value is not a state. For a reset of a key without
--          grants it is the number of deleted keys instead: 0 or 1
local GRANT, RESET = 0, 2
-- The first byte of a state with grants, and the number under which it is created.
local GRANTED, LEASED = 0x8c, 6

-- Forgets a key but for its grants, whatever its value is.
local function reset(name, operations)
  local value, state = redis.pcall('GET', name), create_state(LEASED, operations, 1)
  if type(value) == 'string' and string.byte(value) == GRANTED and pcall(state.load, value) then
    state.reset()
    state.store(name)
    return value
  end
  return redis_call('DEL', name)
end

local function apply(name, operations)
  key = name
  local position = LIMIT_BYTES + 1
  if string.byte(operations, position) == RESET then
    return reset(name, operations)
  end
  local value, state = redis_call('GET', name), create_state(LEASED, operations, 1)
  state.load(value)
  while position <= #operations do
    local kind, id, units, duration, divisor
    kind, position = unpack_numbers('<B', operations, position)
    if kind == GRANT then
      id, units, duration, divisor, position = unpack_numbers('<I8I8I8I8', operations, position)
      state.grant(id, units, duration, divisor)
    else
      id, units, position = unpack_numbers('<I8I8', operations, position)
      state.give_back(id, units)
    end
  end
  state.store(name)
  return value
end

local replies = { now }
for i, name in ipairs(KEYS) do
  local is_done, reply = pcall(apply, name, ARGV[i + 1])
  if not is_done then
    -- An error of a command begins with its code, except in Redis before 7.0.
    local text = type(reply) == 'table' and reply.err or tostring(reply)
    reply = redis.error_reply(string.find(text, '^%u+ ') and text or 'ERR ' .. text)
  end
  replies[i + 1] = reply
end
return replies
