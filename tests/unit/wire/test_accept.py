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
        ("application/json, application/x-ndjson", NDJSON),
        ("application/cloudevents+json", CLOUDEVENTS),
        ("application/cloudevents-batch+json, */*", CLOUDEVENTS),
    ],
)
def test_history(accept: str, form: str) -> None:
    assert form_of_history(accept) == form


def test_lines_are_cloudevents_if_both_are_named() -> None:
    assert wants_cloudevent("application/x-ndjson, application/cloudevents+json")
    assert not wants_cloudevent("application/x-ndjson")


@pytest.mark.parametrize("accept", ["", "text/event-stream", "text/*", "*/*;q=0.1"])
def test_streams(accept: str) -> None:
    assert not streams_cloudevents(accept)
    check_deliveries(accept)


def test_streams_of_cloudevents_are_of_messages_only() -> None:
    assert streams_cloudevents("text/event-stream, application/cloudevents+json")
    with pytest.raises(GaplessError) as caught:
        check_deliveries("application/cloudevents+json")
    assert caught.value.code is Code.NOT_ACCEPTABLE


@pytest.mark.parametrize("check", [form_of_history, streams_cloudevents, check_deliveries])
def test_other_forms_are_refused(check: object) -> None:
    assert callable(check)
    with pytest.raises(GaplessError) as caught:
        check("image/png")
    assert caught.value.code is Code.NOT_ACCEPTABLE
