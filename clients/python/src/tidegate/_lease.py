"""When to renew a permit. Both kinds of permit ask here; they differ in how they wait.

A lease is renewed when a third of it has gone by. A renewal that fails is tried again
soon, because the server may only be restarting; it is given up when the lease has ended
by the caller's own clock, for then somebody else may have the place.
"""

from __future__ import annotations

import time

_RENEWALS_PER_LEASE = 3
_TRIES_PER_LEASE = 12
# Never more often, however short the lease: renewing must not become a load of its own.
_MIN_WAIT_S = 0.01


class Lease:
    def __init__(self, ttl_ms: int) -> None:
        self.lost = False
        self.start(ttl_ms)

    def start(self, ttl_ms: int) -> None:
        """It is held for so long, from now on."""
        self._ttl_s = ttl_ms / 1000
        self._ends = time.monotonic() + self._ttl_s

    def wait_s(self) -> float:
        """Before it is to be renewed."""
        return max(self._ttl_s / _RENEWALS_PER_LEASE, _MIN_WAIT_S)

    def wait_after_failure_s(self) -> float | None:
        """Before the next try; `None` if the lease has ended meanwhile."""
        if time.monotonic() >= self._ends:
            self.lost = True
            return None
        return max(self._ttl_s / _TRIES_PER_LEASE, _MIN_WAIT_S)
