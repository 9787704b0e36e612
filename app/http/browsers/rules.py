"""The rules for browsers, in one place: which hosts this service answers to, and which pages may use it.

`Browsers.admit` sees every request right after its head, whatever it asks for. Nothing here depends on
credentials, so a page can do no more on a machine without them than a stranger from outside.

- `Host` names an address, `localhost` or a name that was allowed. A page that rebinds its own name to this
  machine's address still sends its own name.
- A browser says where a request comes from: in `Origin`, or in `Sec-Fetch-Site` if there is no `Origin`
  (images, scripts, frames, navigation). A request from a foreign page is refused.
- A body needs a media type. None of the accepted types is one that a page may send without a preflight.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

from app.http.browsers.names import parse_authority, parse_origin, without_default_port
from app.http.limits import bad_request
from subscriptions.domain.errors import Code, GaplessError

Headers = list[tuple[bytes, bytes]]

EVERY_ANSWER: Final[tuple[tuple[str, str], ...]] = (
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("cross-origin-resource-policy", "same-origin"),
    ("vary", "Origin"),
)
"""Headers of every answer. None of them depends on the request, so that no answer can lack one."""

METHODS: Final = "GET, HEAD, POST, PUT, PATCH, DELETE"
REQUEST_HEADERS: Final = (
    "accept",
    "authorization",
    "content-encoding",
    "content-type",
    "expected-key-id",
    "expected-last-seq",
    "expected-version",
    "idempotency-key",
    "if-match",
    "if-none-match",
    "last-event-id",
)
"""What a page of an allowed origin may send, besides `ce-…`, the attributes of CloudEvents in binary mode."""
RESPONSE_HEADERS: Final = (
    "allow",
    "etag",
    "idempotent-replayed",
    "retry-after",
    "www-authenticate",
    "x-request-id",
)
PREFLIGHT_AGE_S: Final = 7200
"""Browsers remember the answer to a preflight for no longer than this anyway."""

ENTRANCES: Final = frozenset({b"/", b"/docs", b"/console"})
"""Pages that a link on any site may lead to."""
MEDIA_TYPES: Final = frozenset(
    {
        b"application/json",
        b"application/merge-patch+json",
        b"application/cloudevents+json",
        b"application/cloudevents-batch+json",
    }
)

_READ: Final = frozenset(
    {
        b"host",
        b"origin",
        b"referer",
        b"user-agent",
        b"sec-fetch-site",
        b"sec-fetch-mode",
        b"sec-fetch-dest",
        b"content-type",
        b"content-length",
        b"transfer-encoding",
        b"ce-specversion",
        b"access-control-request-method",
        b"access-control-request-headers",
        b"access-control-request-private-network",
    }
)
_WITH_BODIES: Final = frozenset({b"POST", b"PUT", b"PATCH"})
_OWN_SITE: Final = frozenset({None, b"same-origin", b"none"})
_ABSOLUTE: Final = re.compile(rb"[a-zA-Z][a-zA-Z0-9+.-]*://([^/?#]*)")
_PATH: Final = re.compile(rb"(?:[a-zA-Z][a-zA-Z0-9+.-]*://[^/?#]*)?([^?#]*).*", re.DOTALL)
_CE_HEADER: Final = re.compile(r"ce-[a-z0-9]{1,64}")
_REMEMBERED: Final = 1024


@dataclass(frozen=True, slots=True)
class Admission:
    """The decision about a request. `refusal` is None if it may go on. `headers` belong to its answer, also
    to a refusal: without them a page could not read it."""

    refusal: GaplessError | None = None
    headers: Sequence[tuple[bytes, bytes]] = ()


_ADMITTED: Final = Admission()


class Browsers:
    """Decides about requests. `hosts` and `origins` have the form that `names.allowed_host` and
    `names.allowed_origin` give them.

    `any_host`: whether every well-formed name is a good `Host` now. It is while credentials are required: a
    page that rebinds its name has none to send. Nothing else in here changes with credentials.
    """

    def __init__(
        self,
        hosts: Iterable[str] = (),
        origins: Iterable[str] = (),
        *,
        any_host: Callable[[], bool] = lambda: False,
    ) -> None:
        self._hosts = frozenset(hosts)
        self._origins = frozenset(origin.encode() for origin in origins)
        self._any_host = any_host
        # Clients repeat themselves: a host is judged once, and so is what a page's origin is to it.
        self._judge = lru_cache(_REMEMBERED)(self._judge_host)

    def admit(self, method: bytes, target: bytes, headers: Headers) -> Admission:
        """Judge a request by its head; header names are in lower case."""
        seen = dict(headers)
        if len(seen) < len(headers):  # One occurs more than once, maybe one that is read here.
            found = [header for header in headers if header[0] in _READ]
            seen = {name: b", ".join([v for n, v in found if n == name]) for name, _ in found}
        refusal = self._host_refusal(target, seen.get(b"host"), headers) or self._page_refusal(
            method, target, seen
        )
        if refusal is None and method in _WITH_BODIES and _lacks_media_type(seen):
            refusal = GaplessError(
                Code.UNSUPPORTED_MEDIA_TYPE, "a body needs a Content-Type: send application/json"
            )
        origin = seen.get(b"origin")
        if origin in self._origins:
            return Admission(refusal, _cors(method, origin, seen))
        return _ADMITTED if refusal is None else Admission(refusal)

    # Hosts.

    def _host_refusal(self, target: bytes, host: bytes | None, headers: Headers) -> GaplessError | None:
        if not host or (b"," in host and sum(name == b"host" for name, _ in headers) > 1):
            return bad_request("exactly one Host header is required")
        if not target.startswith(b"/"):
            absolute = _ABSOLUTE.match(target)
            if absolute is not None and absolute[1].lower() != host.lower():
                return bad_request("the target names another host than the Host header")
        verdict = self._judge(host)
        if verdict or (verdict is False and self._any_host()):
            return None
        return GaplessError(
            Code.HOST_NOT_ALLOWED,
            f"this service does not answer to the host {host.decode('latin-1')}: use its address or"
            " localhost, or name the host in GAPLESS_ALLOWED_HOSTS",
        )

    def _judge_host(self, host: bytes) -> bool | None:
        """Whether it is an own name; None: no name at all."""
        found = parse_authority(host.decode("latin-1"))
        if found is None:
            return None
        name = found.host
        local = found.is_address or name == "localhost" or name.endswith(".localhost")
        return local or name in self._hosts

    # Pages.

    def _page_refusal(self, method: bytes, target: bytes, seen: dict[bytes, bytes]) -> GaplessError | None:
        origin, site = seen.get(b"origin"), seen.get(b"sec-fetch-site")
        if origin is None:
            is_foreign = site not in _OWN_SITE
        else:
            own = site in _OWN_SITE and _is_own(origin, seen[b"host"])
            is_foreign = not own and origin not in self._origins
        if is_foreign and not _is_entrance(method, target, seen):
            return _foreign(origin or b"another site")
        if method == b"GET" and origin is None and _acts(target) and self._is_dubious(seen):
            return _foreign(b"somewhere the browser does not tell")
        return None

    def _is_dubious(self, seen: dict[bytes, bytes]) -> bool:
        """Whether a GET that acts may come from a foreign page though nothing says so.

        A user may type the address of a foreign page that redirects to here: that is `Sec-Fetch-Site: none`.
        To addresses that are neither loopback nor https, browsers send no `Sec-Fetch-…` at all.
        """
        if seen.get(b"sec-fetch-mode") == b"navigate":
            return True
        if b"sec-fetch-site" in seen or not seen.get(b"user-agent", b"").startswith(b"Mozilla/"):
            return False
        referer = _ABSOLUTE.match(seen.get(b"referer", b""))
        page = b"" if referer is None else referer[0]
        return not _is_own(page, seen[b"host"]) and page not in self._origins


def is_preflight(headers: Headers) -> bool:
    """Whether a browser asks with this OPTIONS what a page may send."""
    return any(name == b"access-control-request-method" for name, _ in headers)


@lru_cache(_REMEMBERED)
def _is_own(origin: bytes, host: bytes) -> bool:
    """Whether a page of `origin` came from this very service, as the client reaches it.

    A proxy may have taken the TLS off, so either scheme will do; `Sec-Fetch-Site` tells the rest.
    """
    page, here = parse_origin(origin.decode("latin-1")), parse_authority(host.decode("latin-1"))
    if page is None or here is None:
        return False
    scheme, there = page
    return scheme in ("http", "https") and there == without_default_port(scheme, here)


def _is_entrance(method: bytes, target: bytes, seen: dict[bytes, bytes]) -> bool:
    return (
        method in (b"GET", b"HEAD")
        and seen.get(b"sec-fetch-mode") == b"navigate"
        and seen.get(b"sec-fetch-dest") == b"document"
        and target.partition(b"?")[0] in ENTRANCES
    )


def _acts(target: bytes) -> bool:
    """Whether a GET changes something: a stream of deliveries takes leases, one of the client protocol makes
    its client present."""
    path = unquote_to_bytes(_PATH.sub(rb"\1", target))
    if path == b"/v1/ws/sse":
        return True
    return path.startswith(b"/v1/subscriptions/") and path.endswith(b"/consume")


def _lacks_media_type(seen: dict[bytes, bytes]) -> bool:
    if b"transfer-encoding" not in seen and not seen.get(b"content-length", b"0").strip(b"0 "):
        return False
    # In binary mode the type is that of the data, and `ce-` headers are not sent without a preflight.
    if b"ce-specversion" in seen:
        return False
    media_type = seen.get(b"content-type", b"")
    return media_type not in MEDIA_TYPES and media_type.partition(b";")[0].strip().lower() not in MEDIA_TYPES


def _cors(method: bytes, origin: bytes, seen: dict[bytes, bytes]) -> Headers:
    headers = [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", ", ".join(RESPONSE_HEADERS).encode()),
    ]
    if method == b"OPTIONS" and b"access-control-request-method" in seen:
        asked = seen.get(b"access-control-request-headers", b"").decode("latin-1").lower()
        events = [name.strip() for name in asked.split(",") if _CE_HEADER.fullmatch(name.strip())]
        headers += [
            (b"access-control-allow-methods", METHODS.encode()),
            (b"access-control-allow-headers", ", ".join([*REQUEST_HEADERS, *events]).encode()),
            (b"access-control-max-age", b"%d" % PREFLIGHT_AGE_S),
        ]
        if seen.get(b"access-control-request-private-network") == b"true":
            headers.append((b"access-control-allow-private-network", b"true"))
    return headers


def _foreign(origin: bytes) -> GaplessError:
    return GaplessError(
        Code.ORIGIN_NOT_ALLOWED,
        f"a page of {origin.decode('latin-1')} may not use this service; name its origin in"
        " GAPLESS_ALLOWED_ORIGINS if it should",
    )
