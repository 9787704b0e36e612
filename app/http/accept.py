"""What `Accept` asks for, where a route has several forms of its answer (RFC 9110 section 12.5.1)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from subscriptions.domain.errors import Code, GaplessError

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
CLOUDEVENT: Final = "application/cloudevents+json"
CLOUDEVENTS: Final = "application/cloudevents-batch+json"

_STREAM: Final = "text/event-stream"
_HISTORY: Final = (JSON, NDJSON, CLOUDEVENTS, CLOUDEVENT)
_QUALITY: Final = re.compile(r"q=([01](\.\d{0,3})?)", re.ASCII)


def form_of_history(accept: str) -> str:
    """The media type of history to answer with. Raises `not_acceptable`."""
    form = _preferred(accept, _HISTORY)
    if form is None:
        raise GaplessError(Code.NOT_ACCEPTABLE, f"history is {JSON}, {NDJSON} or {CLOUDEVENTS}")
    return CLOUDEVENTS if form == CLOUDEVENT else form


def wants_cloudevent(accept: str) -> bool:
    """Whether one message, or a line of NDJSON, is to be a CloudEvent. Anything else is no error."""
    return _preferred(accept, (JSON, CLOUDEVENT)) == CLOUDEVENT


def streams_cloudevents(accept: str) -> bool:
    """Whether the data of a stream is to be CloudEvents. Raises `not_acceptable` if the client does not
    accept event streams."""
    named = any(kind == CLOUDEVENT and quality > 0 for kind, quality in _ranges(accept))
    if not named and _preferred(accept, (_STREAM,)) is None:
        raise GaplessError(Code.NOT_ACCEPTABLE, "this is text/event-stream and nothing else")
    return named


def check_deliveries(accept: str) -> None:
    """Raises `not_acceptable` unless the client accepts a stream of deliveries, which have only one form."""
    if streams_cloudevents(accept):
        raise GaplessError(Code.NOT_ACCEPTABLE, "deliveries are not given as CloudEvents")


def _preferred(accept: str, forms: Sequence[str]) -> str | None:
    """The form of the highest quality; among equals one that is named, then the one that stands first in
    `accept`, then in `forms`. None: all are refused."""
    ranges = _ranges(accept)
    if not ranges:
        return forms[0]
    ranked = [(_rank(form, ranges), form) for form in forms]
    (quality, *_), form = max(ranked, key=lambda each: each[0])
    return form if quality > 0 else None


def _rank(form: str, ranges: Sequence[tuple[str, float]]) -> tuple[float, bool, int]:
    """The quality of a form, whether it is named, and its place: by the narrowest range that it is in."""
    for wanted in (form, form.partition("/")[0] + "/*", "*/*"):
        for place, (kind, quality) in enumerate(ranges):
            if kind == wanted:
                return quality, kind == form, -place
    return 0.0, False, 0


def _ranges(accept: str) -> list[tuple[str, float]]:
    """The media ranges with their qualities, in the order in which they were sent."""
    found = []
    for part in accept.lower().split(","):
        kind, *parameters = (text.strip() for text in part.split(";"))
        quality = next((float(said[1]) for each in parameters if (said := _QUALITY.fullmatch(each))), 1.0)
        if kind:
            found.append((kind, min(quality, 1.0)))
    return found
