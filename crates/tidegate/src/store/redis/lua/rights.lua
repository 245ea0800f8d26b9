-- Whether the user of a connection may do what the other scripts do, and the connection itself.
-- Run once a connection; it also shows that scripts are run, and in time.
--
-- ARGV     1 a name such as states have
--          2 and so on: commands without a key that are needed besides
-- returns  the first command that is refused; in an array if the server does not know it; or
--          nothing
--
-- Redis before 7.0 cannot be asked: there it shows when the command is needed.
if not redis.acl_check_cmd then
  return false
end
local name = ARGV[1]
local commands = {
  {'GET', name}, {'SET', name, '0', 'PX', '1'}, {'INCR', name}, {'INCRBY', name, '1'},
  {'DECRBY', name, '1'}, {'DEL', name}, {'TIME'},
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
