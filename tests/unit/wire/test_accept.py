"""`Accept`: which form each of its ranges gives, and what is refused."""

from __future__ import annotations

import pytest

from app.http.accept import (
    CLOUDEVENTS,
    JSON,
    NDJSON,
    check_deliveries,
    form_of_history,
    streams_cloudevents,
    wants_cloudevent,
)
from subscriptions.domain.errors import Code, GaplessError


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", JSON),
        ("*/*", JSON),
        ("application/*;q=0.5", JSON),
        ("text/html, Application/JSON", JSON),
        ("application/json, application/x-ndjson", JSON),
        ("application/x-ndjson, application/json", NDJSON),
        ("application/x-ndjson;q=0, application/json", JSON),
        ("application/x-ndjson;q=0.5, application/json;charset=utf-8;q=0.4", NDJSON),
        ("application/json; Q=0.2, application/cloudevents+json; q=0.3", CLOUDEVENTS),
        ("*/*, application/x-ndjson", NDJSON),
        ("*/*;q=0.9, application/x-ndjson;q=0.8", JSON),
        ("application/json;q=0, */*", NDJSON),
        ("text/html, application/*;q=0.2, */*;q=0.1", JSON),
        ("application/cloudevents+json", CLOUDEVENTS),
        ("application/cloudevents-batch+json, */*", CLOUDEVENTS),
    ],
)
def test_history(accept: str, form: str) -> None:
    assert form_of_history(accept) == form


def test_lines_are_cloudevents_if_both_are_named() -> None:
    both = "application/x-ndjson, application/cloudevents+json"
    assert (form_of_history(both), wants_cloudevent(both)) == (NDJSON, True)
    assert not wants_cloudevent("application/x-ndjson")


@pytest.mark.parametrize(
    ("accept", "event"),
    [
        ("", False),
        ("application/cloudevents+json", True),
        ("application/cloudevents+json, */*", True),
        ("application/cloudevents+json, application/json", True),
        ("application/json, application/cloudevents+json;q=0.5", False),
        ("application/cloudevents+json;q=0", False),
        ("application/cloudevents+jsonx", False),
        ("Application/CloudEvents+JSON", True),
        ("image/png", False),
    ],
)
def test_one_message(accept: str, event: bool) -> None:
    assert wants_cloudevent(accept) is event


@pytest.mark.parametrize(
    "accept",
    [
        "",
        "text/event-stream",
        "text/*",
        "*/*;q=0.1",
        "text/event-stream, application/cloudevents+json;q=0",
    ],
)
def test_streams(accept: str) -> None:
    assert not streams_cloudevents(accept)
    check_deliveries(accept)


def test_streams_of_cloudevents_are_of_messages_only() -> None:
    assert streams_cloudevents("text/event-stream, application/cloudevents+json")
    with pytest.raises(GaplessError) as caught:
        check_deliveries("application/cloudevents+json")
    assert caught.value.code is Code.NOT_ACCEPTABLE


@pytest.mark.parametrize("check", [form_of_history, streams_cloudevents, check_deliveries])
@pytest.mark.parametrize(
    "accept", ["image/png", "*/*;q=0", "application/json;q=0.0, text/event-stream;q=0.000"]
)
def test_other_forms_are_refused(check: object, accept: str) -> None:
    assert callable(check)
    with pytest.raises(GaplessError) as caught:
        check(accept)
    assert caught.value.code is Code.NOT_ACCEPTABLE
