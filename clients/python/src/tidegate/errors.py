"""The exceptions of the clients. A denial is an answer, not an exception."""

from __future__ import annotations

from .answers import Problem


class TidegateError(Exception):
    """Base class: there is no decision."""


class Unreachable(TidegateError):
    """The server could not be reached, or the connection broke. The message names the URL."""


class DeadlineExceeded(Unreachable):
    """The server did not answer in time. The check may have been charged; with an `id` it can be repeated."""


class UnexpectedAnswer(TidegateError):
    """The response is not one of tidegate. The message names the URL, which may be wrong."""


class Rejected(TidegateError):
    """The server at `url` rejected the request; `problem` has the reason. The message names both.

    `url` is `None` if the client knew the reason and sent no request: `problem` is then the one that
    the server would send, and the message is its detail.
    """

    def __init__(self, problem: Problem, url: str | None) -> None:
        where = f" (field {problem.field})" if problem.field else ""
        source = "" if url is None else f"answer from {url}: {problem.status} {problem.title}: "
        super().__init__(f"{source}{problem.detail}{where}")
        self.problem = problem


class Unavailable(Rejected):
    """The server cannot decide now: its shared store is unavailable, or it holds the most permits it can."""


class PermitLost(Rejected):
    """The permit is no longer held: its lease ended before it was renewed or given back, or it was given back before."""
