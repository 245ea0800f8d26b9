"""Client of the tidegate rate limiter, and retries that respect any limiter.

Ask a tidegate server with `Client` or `AsyncClient`. Call limited services with `retry`,
or through `tidegate.httpx_transport` and `tidegate.requests_adapter`. Answer your own
callers with `admit`, or with `rate_limit_fields` and `refusal`.
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
