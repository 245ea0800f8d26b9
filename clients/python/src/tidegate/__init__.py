"""Client of the tidegate rate limiter, and retries that respect any limiter.

`Client` and `AsyncClient` send checks to a tidegate server. `retry`,
`tidegate.httpx_transport` and `tidegate.requests_adapter` call rate-limited services.
`admit`, `rate_limit_fields` and `refusal` are for middleware of your own service.
"""

from ._admit import OnFailure, Passage, admit, admit_async
from ._client import AsyncClient, AsyncPermit, Client, Permit
from ._retry import Backoff, Budget, Pacer, Retrier, retry, retry_async
from ._wire import Attributes, Check
from .answers import Answer, Decided, Denied, Line, Problem
from .errors import DeadlineExceeded, PermitLost, Rejected, TidegateError, Unavailable, UnexpectedAnswer, Unreachable
from .fields import Advice, advise
from .refusals import Refusal, rate_limit_fields, refusal, unavailable, unreadable

__all__ = [
    "Advice",
    "Answer",
    "AsyncClient",
    "AsyncPermit",
    "Attributes",
    "Backoff",
    "Budget",
    "Check",
    "Client",
    "DeadlineExceeded",
    "Decided",
    "Denied",
    "Line",
    "OnFailure",
    "Pacer",
    "Passage",
    "Permit",
    "PermitLost",
    "Problem",
    "Refusal",
    "Rejected",
    "Retrier",
    "TidegateError",
    "Unavailable",
    "UnexpectedAnswer",
    "Unreachable",
    "admit",
    "admit_async",
    "advise",
    "rate_limit_fields",
    "refusal",
    "retry",
    "retry_async",
    "unavailable",
    "unreadable",
]
