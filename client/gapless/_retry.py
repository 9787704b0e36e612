"""Decides on retries from the outcome, the time and a random number, all passed in. Nothing here waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gapless._errors import GaplessError, ProtocolError, Unreachable, error_from_answer


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete answer of the server. Names in `headers` are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


@dataclass(frozen=True, slots=True)
class NoReply:
    """No complete answer came. `sent` is false if certainly nothing of the request reached a server.

    `passing` is false if another attempt would fail in the same way.
    """

    reason: str
    sent: bool = True
    passing: bool = True
    cause: Exception | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """A streamed answer came to its proper end."""


Outcome = Reply | NoReply
"""The outcome of one attempt of a call."""
Break = Reply | NoReply | Ended
"""The event that ended or prevented one connection of a stream."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a call is tried: at most `attempts` times. No attempt starts after `total_seconds`.

    The wait before attempt n+1 is drawn uniformly from 0 to `base_seconds` x 2^(n-1), at most `cap_seconds`
    (exponential backoff with full jitter). If the server sent `Retry-After`, the wait is added to it.
    """

    attempts: int = 8
    total_seconds: float = 30.0
    base_seconds: float = 0.1
    cap_seconds: float = 5.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or min(self.total_seconds, self.base_seconds, self.cap_seconds) < 0:
            raise ValueError("a retry policy has at least one attempt and no negative time")


NO_RETRY = RetryPolicy(attempts=1)


def backoff(failures: int, base_seconds: float, cap_seconds: float, chance: float) -> float:
    """The wait in seconds after `failures` failures in a row; `chance` is uniform in [0, 1)."""
    # The exponent is bounded so that a reader that has failed for days does not overflow a float.
    return chance * min(cap_seconds, base_seconds * 2.0 ** min(failures - 1, 60))


def error_from(outcome: Outcome) -> GaplessError:
    """The error that a caller gets for an outcome that is not a success."""
    if isinstance(outcome, NoReply):
        error: GaplessError = Unreachable(outcome.reason, code="unreachable", retryable=outcome.passing)
        error.__cause__ = outcome.cause
        return error
    if outcome.status < 400:
        return ProtocolError(f"unexpected status {outcome.status}", code="protocol", status=outcome.status)
    return error_from_answer(outcome.status, outcome.headers, outcome.body)


class Attempts:
    """The attempts of one call. After each outcome it says: accept it, wait and repeat, or fail.

    `repeatable` says that a second arrival of the same request changes nothing more than the first. A call
    that is not repeatable is repeated only if the first attempt was certainly not carried out. With
    `renews_token` one attempt may be refused with 401: its token may have ended on the way. Errors carry
    `idempotency_key`.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        *,
        repeatable: bool,
        now: float,
        chance: Callable[[], float],
        idempotency_key: str | None = None,
        renews_token: bool = False,
    ) -> None:
        self._policy = policy
        self._renews_token = renews_token
        self._repeatable = repeatable
        self._deadline = now + policy.total_seconds
        self._chance = chance
        self._idempotency_key = idempotency_key
        self._failures = 0

    def judge(self, outcome: Outcome, now: float) -> Reply | float:
        """The reply if it is a success, else the seconds to wait before the next attempt.

        Raises the outcome's `GaplessError` if it is final, or if attempts or time are used up.
        """
        if isinstance(outcome, Reply) and outcome.ok:
            return outcome
        error = error_from(outcome)
        error.idempotency_key = self._idempotency_key
        self._failures += 1
        if self._failures >= self._policy.attempts or not self._worth_repeating(outcome, error):
            raise error
        delay = self._delay_seconds(error)
        if now + delay > self._deadline:
            raise error
        return delay

    def _worth_repeating(self, outcome: Outcome, error: GaplessError) -> bool:
        if error.status == 401 and self._renews_token:
            self._renews_token = False
            return True
        if not error.retryable:
            return False
        not_carried_out = not outcome.sent if isinstance(outcome, NoReply) else outcome.status in (429, 503)
        return self._repeatable or not_carried_out

    def _delay_seconds(self, error: GaplessError) -> float:
        # Jitter on top of Retry-After spreads callers that were all told the same second.
        jitter = backoff(self._failures, self._policy.base_seconds, self._policy.cap_seconds, self._chance())
        return jitter + (error.retry_after or 0.0)
