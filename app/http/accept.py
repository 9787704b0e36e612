"""What `Accept` asks for, where a route has several forms of its answer."""

from __future__ import annotations

from typing import Final

from subscriptions.domain.errors import Code, GaplessError

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
CLOUDEVENT: Final = "application/cloudevents+json"
CLOUDEVENTS: Final = "application/cloudevents-batch+json"

_OF_STREAMS: Final = frozenset({"text/event-stream", "text/*", "*/*", CLOUDEVENT})


def form_of_history(accept: str) -> str:
    """The media type of history to answer with. Raises `not_acceptable`."""
    ranges = set(_ranges(accept))
    if NDJSON in ranges:
        return NDJSON
    if ranges & {CLOUDEVENTS, CLOUDEVENT}:
        return CLOUDEVENTS
    if not ranges or ranges & {JSON, "application/*", "*/*"}:
        return JSON
    raise GaplessError(Code.NOT_ACCEPTABLE, f"history is {JSON}, {NDJSON} or {CLOUDEVENTS}")


def wants_cloudevent(accept: str) -> bool:
    """Whether one message, or a line of NDJSON, is to be a CloudEvent. Anything else is no error."""
    return CLOUDEVENT in accept


def streams_cloudevents(accept: str) -> bool:
    """Whether the data of a stream is to be CloudEvents. Raises `not_acceptable` if the client does not
    accept event streams."""
    ranges = _ranges(accept)
    if ranges and not _OF_STREAMS.intersection(ranges):
        raise GaplessError(Code.NOT_ACCEPTABLE, "this is text/event-stream and nothing else")
    return CLOUDEVENT in ranges


def check_deliveries(accept: str) -> None:
    """Raises `not_acceptable` unless the client accepts a stream of deliveries, which have only one form."""
    if streams_cloudevents(accept):
        raise GaplessError(Code.NOT_ACCEPTABLE, "deliveries are not given as CloudEvents")


def _ranges(accept: str) -> list[str]:
    return [part.split(";")[0].strip().lower() for part in accept.split(",") if part.strip()]
