-- Records that a node is alive, in the table of the nodes that share a store.
--
-- KEYS     1 the key of the table
-- ARGV     1 the time in microseconds, or '' for the server's time
--          2 the id of the node, 8 bytes
--          3 its description, at most 255 bytes; '' removes the node
--          4 the time in microseconds after which a node counts as gone
--          5 the maximum number of nodes; further ones are not recorded
-- returns  the time in microseconds, and the table
--
-- An entry of the table is an id, the time of the last heartbeat (8 bytes), the length of the
-- description (1 byte) and the description. A value of another form is replaced.
key = KEYS[1]
local node, description, most_age, most = ARGV[2], ARGV[3], ARGV[4] + 0, ARGV[5] + 0
local stored = redis_call('GET', key)
local entries, at = {}, 1
while stored and at + 16 <= #stored do
  local seen = unpack_numbers('<I8', stored, at + 8)
  local last = at + 16 + stored:byte(at + 16)
  -- A time far in the future was written before the clock was set back.
  if last <= #stored and stored:sub(at, at + 7) ~= node and math.abs(now - seen) < most_age then
    entries[#entries + 1] = stored:sub(at, last)
  end
  at = last + 1
end
if description ~= '' and #entries < most then
  local length = string.char(#description)
  entries[#entries + 1] = node .. pack_numbers('<I8', now) .. length .. description
end
local nodes = table.concat(entries)
write(key, stored, #entries > 0 and nodes, now + most_age)
return {string.format('%.0f', now), nodes}
