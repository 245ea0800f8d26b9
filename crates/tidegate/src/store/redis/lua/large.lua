-- The body of open_large(algorithm, raw, attempt), which opens a state of more than a few numbers.
-- script.rs puts it behind the files that it calls, all of them inside that function.
--
-- Returns whether the state admits the request, a function that settles it, and the numbers of the
-- reply. settle(charged, consumed) charges the request if `charged`, or else the units that a
-- denial consumes. It returns the bytes to store, when they expire, the numbers of the reply and,
-- for a sliding-window, its bytes for the reply.
if algorithm == LOG then
  return sliding_log(raw, attempt)
elseif algorithm == WINDOW then
  return sliding_window(raw, attempt)
end
return concurrency(raw, attempt)
