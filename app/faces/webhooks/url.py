"""The URLs that webhooks may have. A URL is parsed once, so requests go to the endpoint that was checked."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final, NoReturn

from app.faces.webhooks.addresses import Address, is_public
from subscriptions.domain.errors import invalid

MAX_URL_CHARACTERS: Final = 2048
MAX_HOST_CHARACTERS: Final = 253
DEFAULT_PORTS: Final = {"http": 80, "https": 443}
FIRST_FREE_PORT: Final = 1024
"""Lower ports except 80 and 443 belong to other protocols than HTTP and must not be connected to."""

# RFC 3986: no space, no control, no backslash, nothing beyond ASCII, which parsers read in different ways.
_CHARACTERS: Final = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]*")
_PARTS: Final = re.compile(
    r"(?P<scheme>[^:/?#]*)://(?P<authority>[^/?#]*)(?P<target>[^#]*)(?P<fragment>#?).*"
)
_AUTHORITY: Final = re.compile(r"(?P<host>\[[^\]]*\]|[^:\[\]]*)(:(?P<port>[0-9]{1,5}))?")
_NAME: Final = re.compile(r"([a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63}")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The target of a post. `host` is in lower case, an IPv6 address without brackets; `target` starts with
    `/`."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        """The value of the `Host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def check_url(url: str, allow_private: bool) -> None:
    """Raises `invalid_request` about `push.url` if its text shows that it may not be posted to."""
    parse_url(url, allow_private)


def parse_url(url: str, allow_private: bool) -> Endpoint:
    """The endpoint that `url` names. Raises as `check_url` does."""
    if len(url) > MAX_URL_CHARACTERS:
        _refuse(f"is longer than {MAX_URL_CHARACTERS} characters")
    if not _CHARACTERS.fullmatch(url):
        _refuse("must be ASCII, with all that URLs do not have percent-encoded")
    parts = _PARTS.fullmatch(url)
    if parts is None or (scheme := parts["scheme"].lower()) not in DEFAULT_PORTS:
        _refuse("must begin with https:// or http://")
    if "@" in parts["authority"]:
        _refuse("must not hold a user or password")
    if parts["fragment"]:
        _refuse("must not hold a fragment")
    host, port = _split(parts["authority"].lower(), DEFAULT_PORTS[scheme])
    try:
        address = literal(host)
    except (OSError, ValueError):
        _refuse("must have a host that is a name or an address")
    if not allow_private:
        _check_public(host, address, port)
    target = parts["target"]
    return Endpoint(scheme, str(address or host), port, target if target.startswith("/") else f"/{target}")


def _split(authority: str, default_port: int) -> tuple[str, int]:
    parts = _AUTHORITY.fullmatch(authority)
    port = int(parts["port"] or default_port) if parts else 0
    if parts is None or not 1 <= port <= 65535:
        _refuse("must have a host, and a port from 1 to 65535 if any")
    return parts["host"], port


def literal(host: str) -> Address | None:
    """The address in `host`, in any form that a resolver reads: `127.1`, `0x7f000001`, `[::1]`.

    None: it is a name. Raises ValueError or OSError if it is neither.
    """
    if host.startswith("["):
        # A zone is for link-local addresses, and means something else on every machine.
        if "%" in host:
            raise ValueError(host)
        return IPv6Address(host[1:-1])
    if len(host) > MAX_HOST_CHARACTERS or not _NAME.fullmatch(host):
        raise ValueError(host)
    # No top-level domain is a number, so a host that ends in one is an address or invalid.
    if _NUMBER.fullmatch(host.rpartition(".")[2]):
        return IPv4Address(socket.inet_aton(host))
    return None


def _check_public(host: str, address: Address | None, port: int) -> None:
    local = host == "localhost" or host.endswith(".localhost")
    if local or (address and not is_public(address)):
        _refuse("must not lead to a private, local or reserved address")
    if port < FIRST_FREE_PORT and port not in DEFAULT_PORTS.values():
        _refuse(f"must use port 80, 443 or one from {FIRST_FREE_PORT}")


def _refuse(rule: str) -> NoReturn:
    raise invalid("push.url", rule)
