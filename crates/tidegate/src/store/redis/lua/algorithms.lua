-- The numbers of a limit, as script.rs encodes them: the algorithm, window, count, capacity, cap,
-- tick, ticks, and the radix of a sliding-counter.
local LIMIT_FORMAT, LIMIT_BYTES = '<BI8I8I8I8I8I8I8', 57

-- The function create_state follows, which has the file of each algorithm as a branch (see
-- with_states! in script.rs). It creates the state of a limit from its numbers, and only the
-- functions of its algorithm.
--
-- Each state is a table of functions that hold the state of one key at a time:
--   load(value)             reads a stored state, advances it to now, and returns its available units
--   available()             returns the available units
--   charge(units, permit)   adds units, whether or not they are available
--   refund(units)           removes units, newest first
--   store(name)             writes the state; without a name, see write()
-- and for a sliding-window:
--   is_converted_by_charge()  returns whether the next charge changes its form or pace, and with
--                           it how long held units count
-- and for states that are replied as a summary:
--   summary()               returns its first two numbers
--   freed_by(cost)          returns when there is room for a cost
