"""What can go wrong. A denial is not among it: that is an answer."""

from __future__ import annotations

from .answers import Problem


class TidegateError(Exception):
    """Any failure to get an answer."""


class Unreachable(TidegateError):
    """No answer came: the server cannot be reached, or the connection broke."""


class DeadlineExceeded(Unreachable):
    """No answer came in time. The check may have been charged all the same, unless it had an `id`."""


class UnexpectedAnswer(TidegateError):
    """Something answered, but not as tidegate does. Is it the right address?"""


class Rejected(TidegateError):
    """The server does not understand the request, or will not take it: `problem` says why."""

    def __init__(self, problem: Problem) -> None:
        where = f" (field {problem.field})" if problem.field else ""
        super().__init__(f"{problem.status} {problem.title}: {problem.detail}{where}")
        self.problem = problem


class Unavailable(Rejected):
    """It cannot be decided now: the store that nodes share fails, or no more permits can be held."""


class PermitLost(Rejected):
    """The permit is not held any more: its lease ended before it was renewed or given back."""
