"""A service that answers without a network, one request after another."""

from __future__ import annotations

import json
from typing import Any

import httpx


class Answers:
    """Gives each request the next answer, and keeps what was asked."""

    def __init__(self, *answers: Any, status: int = 200) -> None:
        self._answers = list(answers)
        self._status = status
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self._answers[min(len(self.requests), len(self._answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(204) if answer is None else httpx.Response(self._status, json=answer)

    def asked(self) -> tuple[str, str, Any]:
        """Method, path and body of the last request."""
        request = self.requests[-1]
        body = json.loads(request.content) if request.content else None
        return request.method, request.url.raw_path.decode(), body
