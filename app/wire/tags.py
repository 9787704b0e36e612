"""Tags of definitions in headers (RFC 9110, section 13): `ETag`, `If-Match`, `If-None-Match`."""

from __future__ import annotations

import re
from typing import Final

from fastapi import Request

from subscriptions.domain.delivery import Tags
from subscriptions.domain.errors import Code, GaplessError

MAX_CHARACTERS: Final = 8192

_TAG: Final = r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"'
_LIST: Final = re.compile(rf"[ \t,]*{_TAG}(?:[ \t]*,[ \t,]*{_TAG})*[ \t,]*")


def etag(tag: str) -> dict[str, str]:
    """The header that tells it."""
    return {"ETag": f'"{tag}"'}


def if_match(request: Request) -> Tags | None:
    """Which tags hold; None where nothing is asked, `*` alone: any. A weak tag never holds. Raises
    `invalid_request`."""
    given = _header(request, "if-match")
    if given is None:
        return None
    if given.strip() == "*":
        return ("*",)
    if not _LIST.fullmatch(given):
        raise _refused("If-Match", 'takes *, or tags as they came in ETag: "…"')
    return tuple(found[1:-1] for found in re.findall(_TAG, given) if not found.startswith("W/"))


def if_absent(request: Request) -> bool:
    """Whether a PUT may only make, not find or replace. Raises `invalid_request`."""
    given = _header(request, "if-none-match")
    if given is None:
        return False
    if given.strip() != "*":
        raise _refused("If-None-Match", "takes * alone here: make it, if nothing is there")
    if _header(request, "if-match") is not None:
        raise _refused("If-None-Match", "cannot be given together with If-Match")
    return True


def _header(request: Request, name: str) -> str | None:
    values = request.headers.getlist(name)
    if not values:
        return None
    text = ",".join(values)
    if len(text) > MAX_CHARACTERS:
        raise _refused(name, f"is longer than {MAX_CHARACTERS} characters")
    return text


def _refused(header: str, message: str) -> GaplessError:
    return GaplessError(Code.INVALID_REQUEST, f"{header}: {message}", status=400)
