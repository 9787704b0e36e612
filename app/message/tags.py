"""Tags of definitions in headers (RFC 9110, section 13): `ETag`, `If-Match`, `If-None-Match`."""

from __future__ import annotations

import re
from typing import Final

from starlette.datastructures import Headers

from subscriptions.domain.delivery import Tags
from subscriptions.domain.errors import Code, GaplessError

MAX_CHARACTERS: Final = 8192

_TAG: Final = r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"'
_LIST: Final = re.compile(rf"[ \t,]*{_TAG}(?:[ \t]*,[ \t,]*{_TAG})*[ \t,]*")


def etag(tag: str) -> tuple[tuple[bytes, bytes], ...]:
    """The `ETag` header for a tag."""
    return ((b"etag", f'"{tag}"'.encode()),)


def if_match(headers: Headers) -> Tags | None:
    """The tags of `If-Match`; None if there is no such header. `*` alone matches any tag, a weak tag none.
    Raises `invalid_request`."""
    given = _header(headers, "if-match")
    if given is None:
        return None
    if given.strip() == "*":
        return ("*",)
    if not _LIST.fullmatch(given):
        raise _refused("If-Match", 'takes *, or tags as they came in ETag: "…"')
    return tuple(found[1:-1] for found in re.findall(_TAG, given) if not found.startswith("W/"))


def bound(tags: Tags | None, tag: str) -> Tags:
    """What `If-Match` leaves for a change that was looked at for the definition with this tag: that one, or
    none."""
    return (tag,) if tags is None or "*" in tags or tag in tags else ()


def if_absent(headers: Headers) -> bool:
    """Whether a PUT may only create, not find or replace. Raises `invalid_request`."""
    given = _header(headers, "if-none-match")
    if given is None:
        return False
    if given.strip() != "*":
        raise _refused("If-None-Match", "takes * alone here: make it, if nothing is there")
    if _header(headers, "if-match") is not None:
        raise _refused("If-None-Match", "cannot be given together with If-Match")
    return True


def _header(headers: Headers, name: str) -> str | None:
    values = headers.getlist(name)
    if not values:
        return None
    text = ",".join(values)
    if len(text) > MAX_CHARACTERS:
        raise _refused(name, f"is longer than {MAX_CHARACTERS} characters")
    return text


def _refused(header: str, message: str) -> GaplessError:
    return GaplessError(Code.INVALID_REQUEST, f"{header}: {message}", status=400)
