-- States that take more than a few numbers, opened: what they say, and how they settle. (Put behind the files
-- it calls, and together with them inside of one function; see script.rs.)
if algorithm == 0 then
  return sliding_log(raw, want)
elseif algorithm == 1 then
  return sliding_window(raw, want)
end
return concurrency(raw, want)
