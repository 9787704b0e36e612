"""A call as a value: the request to send and how to read the answer. The faces carry it out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from gapless._config import Config
from gapless._effects import Sources
from gapless._errors import ProtocolError
from gapless._retry import Attempts, Reply, RetryPolicy

T = TypeVar("T")

Params = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request. `silence_seconds` limits the wait for the next byte of a streamed answer.

    `held_seconds` is how long the server may delay the answer on purpose.
    """

    method: str
    path: str
    params: Params = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    silence_seconds: float | None = None
    held_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request with one whole answer. `repeatable`: if it arrives twice, the second changes nothing more."""

    request: Request
    decode: Callable[[Reply], T]
    repeatable: bool = True
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Slice(Generic[T]):
    """A part of a listing, and the call that gets the next part (None after the last part)."""

    items: tuple[T, ...]
    following: Call[Slice[T]] | None


def attempts_for(
    call: Call[Any], config: Config, effects: Sources, policy: RetryPolicy | None = None
) -> Attempts:
    """The attempts of this call, beginning now, by its own policy or that of the client."""
    return Attempts(
        policy or config.retry,
        repeatable=call.repeatable,
        now=effects.clock(),
        chance=effects.chance,
        idempotency_key=call.idempotency_key,
        renews_token=config.renews_token,
    )


def path(*segments: str | int) -> str:
    """The path of a resource. Raises `ValueError` for names that no URL can carry."""
    return "/".join(("/v1", *(_segment(str(segment)) for segment in segments)))


def _segment(text: str) -> str:
    # Software on the way would resolve a dot segment, and the request would reach another resource.
    if text in ("", ".", ".."):
        raise ValueError(f"not a name: {text!r}")
    return quote(text, safe="~:@")


JSON: Mapping[str, str] = {"Accept": "application/json"}
SENDING: Mapping[str, str] = {**JSON, "Content-Type": "application/json"}


def asking(
    method: str,
    where: str,
    decode: Callable[[Any], T],
    body: Any = None,
    *,
    params: Params = (),
    repeatable: bool = True,
    headers: Mapping[str, str] | None = None,
) -> Call[T]:
    """A call that is answered with JSON. Its body is encoded once: every attempt sends the same bytes."""
    content = None if body is None else json_body(body)
    sent = {**(JSON if content is None else SENDING), **(headers or {})}
    request = Request(method, where, params, sent, content)
    return Call(request, lambda reply: decode(json_of(reply)), repeatable)


def telling(
    method: str, where: str, params: Params = (), *, headers: Mapping[str, str] | None = None
) -> Call[None]:
    """A call that removes something. It is not repeated: a repetition would find nothing and fail."""
    request = Request(method, where, params, {**JSON, **(headers or {})})
    return Call(request, lambda reply: None, repeatable=False)


def matching(etag: str | None) -> dict[str, str]:
    """The `If-Match` header for a change that needs this tag; no header for None."""
    return {} if etag is None else {"If-Match": etag}


def changing(
    method: str, where: str, decode: Callable[[Any], T], body: Any, if_match: str | None, params: Params = ()
) -> Call[T]:
    """A change, made only if the tag still matches. With a tag it is not repeated if it may have been done,
    because then the tag has changed."""
    headers, repeatable = matching(if_match), if_match is None
    return asking(method, where, decode, body, params=params, repeatable=repeatable, headers=headers)


def tagged(call: Call[T]) -> Call[T]:
    """A call whose result has an `etag`, taken from the answer's header."""

    def decode(reply: Reply) -> T:
        found: Any = call.decode(reply)
        with_tag: T = replace(found, etag=reply.headers.get("etag"))
        return with_tag

    return replace(call, decode=decode)


def json_body(value: Any) -> bytes:
    """Compact JSON in UTF-8. Raises `ValueError` for NaN and infinities, `TypeError` for other types."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def json_of(reply: Reply) -> Any:
    """The JSON of a successful answer. Raises `ProtocolError`."""
    try:
        return json.loads(reply.body)
    except ValueError as error:
        raise ProtocolError(f"the answer is not JSON: {reply.body!r:.200}", status=reply.status) from error


def params_from(values: Mapping[str, Any]) -> Params:
    """Query parameters: None is left out, each item of a sequence is one, a time is written as RFC 3339.

    Raises `ValueError` for a time without a zone, which would mean another instant on another machine.
    """
    pairs: list[tuple[str, str]] = []
    for name, value in values.items():
        if value is None:
            continue
        many = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
        pairs += [(name, _text(name, one)) for one in many]
    return tuple(pairs)


def trying(dry_run: bool) -> Params:
    """The query parameters of a call that has a dry run."""
    return params_from({"dry_run": "true" if dry_run else None})


def _text(name: str, value: Any) -> str:
    return time_text(name, value) if isinstance(value, datetime) else str(value)


def time_text(name: str, value: datetime) -> str:
    """A time as RFC 3339. Raises `ValueError` for one without a zone."""
    if value.tzinfo is None:
        raise ValueError(f"{name} needs a time with a zone, such as datetime.now(timezone.utc)")
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
