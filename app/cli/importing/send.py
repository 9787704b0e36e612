"""Sending batches: the same bytes under the same key until the service has answered."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
from gapless._config import Config
from gapless_cli.failures import Exit, Failure, usage

TIMEOUT = httpx.Timeout(30.0, connect=5.0)
FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 2.0
_PASSING = frozenset({408, 425, 429})
_LASTING = frozenset({501, 505})


@dataclass(frozen=True, slots=True)
class Stored:
    """`last_id` is the id of the batch's last message. `replayed`: an earlier attempt had stored it."""

    last_id: int
    replayed: bool


class RefusedError(Exception):
    """The service understood and said no; another attempt would be refused too."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Sender:
    """Waits out a server that is away, for `patience_s` seconds at a time, and says so."""

    def __init__(self, url: str, patience_s: float, tell: Callable[[str], None]) -> None:
        self.url = url.rstrip("/")
        self._patience_s = patience_s
        self._tell = tell
        try:
            self._config = Config.resolve(url, None, 1.0, None)
        except ValueError as error:
            raise usage(str(error)) from error
        self._http = httpx.Client(timeout=TIMEOUT)

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def publish(self, body: bytes, key: str) -> Stored:
        """Store a batch, once. Raises `RefusedError`, or `Failure` when the patience is over."""
        headers = {"Content-Type": "application/json", "Idempotency-Key": key}
        answer = self._ask("POST", "/v1/messages", body, headers)
        try:
            last_id = int(answer.json()["messages"][-1]["id"])
        except (ValueError, LookupError, TypeError) as error:
            raise RefusedError(answer.status_code, f"not the answer of a Gapless server: {error}") from error
        return Stored(last_id, answer.headers.get("idempotent-replayed") == "true")

    def head(self, channel: str) -> int:
        """The id of a channel's newest message, 0 where there is no such channel; raises as `publish`."""
        try:
            answer = self._ask("GET", f"/v1/channels/{quote(channel, safe='~:@')}", None, {})
        except RefusedError as error:
            if error.status == 404:
                return 0
            raise
        return int(answer.json()["last_id"])

    def _ask(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> httpx.Response:
        away_since: float | None = None
        delay_s = FIRST_DELAY_S
        while True:
            answer, why = self._attempt(method, path, body, headers)
            now = time.monotonic()
            if answer is not None and answer.is_success:
                if away_since is not None:
                    self._tell(f"the server is back after {now - away_since:.1f} s")
                return answer
            if answer is not None and not _is_passing(answer.status_code):
                raise RefusedError(answer.status_code, why)
            if away_since is None:
                away_since = now
                self._tell(f"{why}; trying again for {self._patience_s:g} s")
            if now - away_since >= self._patience_s:
                raise Failure(f"gave up on {self.url} after {self._patience_s:g} s: {why}", Exit.UNREACHABLE)
            time.sleep(_delay(delay_s, answer))
            delay_s = min(LONGEST_DELAY_S, delay_s * 2)

    def _attempt(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[httpx.Response | None, str]:
        """The answer, if there was one, and in words what is wrong with it."""
        try:
            sent = {**headers, **self._config.headers()}
            answer = self._http.request(method, self.url + path, content=body, headers=sent)
        except ValueError as error:
            raise usage(str(error)) from error
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
            raise usage(f"cannot ask {self.url!r}: {error}") from error
        except httpx.RequestError as error:
            return None, f"no server answers at {self.url} ({type(error).__name__}: {error})"
        return answer, "" if answer.is_success else _problem(answer)


def _is_passing(status: int) -> bool:
    return status in _PASSING or (status >= 500 and status not in _LASTING)


def _delay(delay_s: float, answer: httpx.Response | None) -> float:
    """A random part keeps many importers from coming back in step."""
    asked = answer.headers.get("retry-after", "") if answer is not None else ""
    return delay_s * random.uniform(0.5, 1.0) + (min(float(asked), 60.0) if asked.isdigit() else 0.0)  # noqa: S311


def _problem(answer: httpx.Response) -> str:
    try:
        problem: Any = answer.json()
        text = f"{problem['code']}: {problem['detail']}"
    except (ValueError, LookupError, TypeError):
        text = f"the server answered with status {answer.status_code}"
    request_id = answer.headers.get("x-request-id")
    return f"{text} (request {request_id})" if request_id else text
