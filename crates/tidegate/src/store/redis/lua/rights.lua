-- Checks that the user of a connection may run every command that the other scripts and the
-- connection itself need. It runs once per connection, and so also shows that the server runs
-- scripts, and runs them in time.
--
-- KEYS     none
-- ARGV     1 a key name with the prefix of all states
--          2 and later: additional commands, which take no key
-- returns  the name of the first command that the user may not run; the name in an array if the
--          server does not know the command; nil if all are permitted
--
-- Redis before 7.0 lacks acl_check_cmd. There a missing permission shows when the command is used.
if not redis.acl_check_cmd then
  return false
end
local name = ARGV[1]
local commands = {
  {'GET', name}, {'MGET', name}, {'SET', name, '0', 'PX', '1'}, {'SETRANGE', name, '0', '0'},
  {'INCRBY', name, '1'}, {'DEL', name}, {'TIME'},
}
for i = 2, #ARGV do
  commands[#commands + 1] = {ARGV[i]}
end
for _, command in ipairs(commands) do
  local known, permitted = pcall(redis.acl_check_cmd, unpack(command))
  if not known then
    return {command[1]}
  elseif not permitted then
    return command[1]
  end
end
return false
