"""Times at which a permit is renewed, for both kinds of permit.

A lease is renewed when a third of it has passed. A failed renewal is repeated soon, because
the server may be restarting. Renewals stop when the lease has ended by the caller's clock,
because another client may hold the permit then.

The server's lease begins between the sending of a request and its answer, so it is counted from
the sending.
"""

from __future__ import annotations

import time

_RENEWALS_PER_LEASE = 3
_TRIES_PER_LEASE = 12
# The shortest wait, so that renewals of a very short lease are not a load.
_MIN_WAIT_S = 0.01


class Lease:
    def __init__(self, ttl_ms: int, sent: float) -> None:
        self.lost = False
        self.start(ttl_ms, sent)

    def start(self, ttl_ms: int, sent: float) -> None:
        """Starts the lease for `ttl_ms`. `sent` is the time of `time.monotonic` at which it was requested."""
        self._ttl_s = ttl_ms / 1000
        self._sent = sent

    def wait_s(self) -> float | None:
        """The time until the next renewal; `None` if the lease has ended."""
        if self.has_ended():
            return None
        return max(self._sent + self._ttl_s / _RENEWALS_PER_LEASE - time.monotonic(), _MIN_WAIT_S)

    def has_ended(self) -> bool:
        """Whether the lease has ended, by the answer of the server or by the caller's clock."""
        self.lost = self.lost or time.monotonic() >= self._sent + self._ttl_s
        return self.lost

    def wait_after_failure_s(self) -> float | None:
        """The time until the next attempt; `None` if the lease has ended."""
        if self.has_ended():
            return None
        return max(self._ttl_s / _TRIES_PER_LEASE, _MIN_WAIT_S)
