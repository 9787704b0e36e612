"""Requests made up from the service's own OpenAPI document, fitting and not: none may end in a 5xx."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode

from tests.patience import PATIENCE_S, eventually

STREAMS = ("/v1/subscribe", "/v1/subscriptions/{name}/consume", "/v1/ws/sse", "/v1/ws/http_stream")
VERBS = ("", "/pull", "/ack", "/nack", "/extend", "/seek", "/bind", "/unbind", "/pause", "/resume")

bounded = settings(
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def operations(server_url: str) -> list[Any]:
    schema = schemathesis.openapi.from_url(f"{server_url}/openapi.json", timeout=PATIENCE_S)
    results: list[Any] = list(schema.get_all_operations())
    found = [result.ok() for result in results]
    # With a key, all others would need one.
    return [one for one in found if (one.method.upper(), one.path) != ("POST", "/v1/keys")]


def cases(operation: Any) -> st.SearchStrategy[Case[Any]]:
    modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    strategy: st.SearchStrategy[Case[Any]] = st.one_of(
        [operation.as_strategy(generation_mode=mode) for mode in modes]
    )
    return strategy


def name_what_is_there(case: Case[Any]) -> None:
    """Names made up from the document are nearly all refused; with a good one the rest is looked at."""
    for parameters in (case.path_parameters, case.query):
        for name in ("channel", "name"):
            if isinstance(parameters, dict) and name in parameters:
                parameters[name] = "made.up"


def wait_for_nothing(case: Case[Any]) -> None:
    """A pull may wait for half a minute."""
    if isinstance(case.body, dict) and "wait" in case.body:
        case.body["wait"] = 0


def send(case: Case[Any], server_url: str) -> tuple[int, str, bytes]:
    """Status, content type and, except of a stream, the body."""
    arguments = case.as_transport_kwargs(base_url=server_url)
    with requests.request(**arguments, stream=True, timeout=PATIENCE_S) as answer:
        content_type = answer.headers.get("content-type", "")
        is_stream = answer.ok and case.operation.path in STREAMS
        body = b"" if is_stream else answer.content
        return answer.status_code, content_type, body


@pytest.mark.parametrize("examples", [4, pytest.param(25, marks=pytest.mark.drill)])
def test_no_made_up_request_makes_the_server_fail(server_url: str, examples: int) -> None:
    asyncio.run(eventually(lambda: requests.get(f"{server_url}/readyz", timeout=PATIENCE_S).ok))
    seen: set[str] = set()
    for operation in operations(server_url):
        seen.add(operation.path)

        @settings(bounded, max_examples=examples)
        @given(cases(operation), st.booleans())
        def exercise(case: Case[Any], named: bool) -> None:
            if named:
                name_what_is_there(case)
            wait_for_nothing(case)
            status, content_type, body = send(case, server_url)
            assert status < 500, (case.as_curl_command(), body)
            if status >= 400 and case.method.upper() != "HEAD":
                assert content_type == "application/problem+json", (case.as_curl_command(), status, body)

        exercise()
    assert {*STREAMS, "/v1/messages", "/v1/channels/{channel}/messages", "/v1/transactions"} <= seen
    assert {f"/v1/subscriptions/{{name}}{verb}" for verb in VERBS} <= seen
    assert {"/v1/ack", "/v1/nack", "/v1/extend"} <= seen
    assert {"/v1/policies/{name}", "/v1/definitions", "/v1/dead-letters/purge", "/v1/scheduled"} <= seen
