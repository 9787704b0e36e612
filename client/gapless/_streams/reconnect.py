"""Decides when an endless stream is reopened and when it is given up."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gapless._errors import CredentialExpired, GaplessError, Unreachable
from gapless._retry import Break, Ended, backoff, error_from

RETRY_SECONDS = 1.0
"""The first backoff if the server gave none."""
FLOOR_SECONDS = 0.1
"""The shortest pause, even if the server asks for none: a failing server must not be flooded."""
CAP_SECONDS = 30.0
STEADY_SECONDS = 5.0
"""A connection that lasted this long, or brought something, does not count as a failure when it ends."""


class Pause(NamedTuple):
    """How long to wait before the next connection, and why the last one ended."""

    seconds: float
    reason: str


class Reconnects:
    """Decides, when a connection ends, on the next one.

    `renews_token` says that the next request may carry a fresh credential, so an expired one costs only a
    reconnect, and after one that was refused there is one more attempt. `give_up_after` is in seconds since
    the first failure in a row; None is never.
    """

    def __init__(
        self, *, give_up_after: float | None, renews_token: bool, chance: Callable[[], float]
    ) -> None:
        self._give_up_after = give_up_after
        self._renews_token = renews_token
        self._chance = chance
        self._opened_at: float | None = None
        self._progressed = False
        self._refused = False
        self._failures = 0
        self._down_since: float | None = None

    def opened(self, now: float) -> None:
        """A connection is open."""
        self._opened_at = now
        self._refused = False

    def progressed(self) -> None:
        """The connection brought something."""
        self._progressed = True

    def lost(self, cause: Break, now: float, *, goodbye: str | None, retry_ms: int | None) -> Pause:
        """The pause before the next connection. `goodbye` is the reason that the server gave, `retry_ms` the
        pause that it asked for.

        Raises an error that no further connection would mend, or the last error when it is time to give up.
        """
        if goodbye == "credential_expired" and not self._renews_token:
            raise CredentialExpired("the credential expired", code="credential_expired", status=401)
        error = None if isinstance(cause, Ended) else error_from(cause)
        if error is not None and not error.retryable and not self._may_renew(error):
            raise error
        self._judge_connection(now)
        at_once = goodbye is not None and self._failures == 0
        delay = 0.0 if at_once else self._delay_seconds(error, retry_ms)
        self._failures += 1
        self._give_up_at_last(error, now)
        return Pause(delay, goodbye or (error.detail if error else "the server ended the stream"))

    def _may_renew(self, error: GaplessError) -> bool:
        """Whether another token may be good where this one was refused: it may have ended on its way."""
        renews = error.status == 401 and self._renews_token and not self._refused
        self._refused = True
        return renews

    def _judge_connection(self, now: float) -> None:
        """Counts failures from zero again if the connection that just ended was not a failure."""
        steady = self._opened_at is not None and now - self._opened_at >= STEADY_SECONDS
        if steady or self._progressed:
            self._failures = 0
            self._down_since = None
        self._opened_at = None
        self._progressed = False

    def _delay_seconds(self, error: GaplessError | None, retry_ms: int | None) -> float:
        base = RETRY_SECONDS if retry_ms is None else max(retry_ms / 1000, FLOOR_SECONDS)
        retry_after = error.retry_after if error else None
        return backoff(self._failures + 1, base, CAP_SECONDS, self._chance()) + (retry_after or 0.0)

    def _give_up_at_last(self, error: GaplessError | None, now: float) -> None:
        if self._down_since is None:
            self._down_since = now
        if self._give_up_after is not None and now - self._down_since > self._give_up_after:
            raise error or Unreachable(
                "the server keeps ending the stream", code="unreachable", retryable=True
            )
