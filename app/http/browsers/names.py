"""Hosts and origins as text: the allowed forms of `Host`, `Origin`, and the two settings for them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final

MAX_HOST_CHARACTERS: Final = 253
_MAX_PORT: Final = 65535
_DEFAULT_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443}

_AUTHORITY: Final = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]+)(?::([0-9]{0,5}))?", re.ASCII)
_LABELS: Final = re.compile(r"[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*", re.ASCII)
_ORIGIN: Final = re.compile(r"([a-z][a-z0-9+.-]{0,31})://([^/?#@\s]{1,300})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Authority:
    """A host and a port. `host` is in lower case. An IPv6 address is in brackets and in its shortest form; a
    name has no final dot."""

    host: str
    port: int | None
    is_address: bool


def parse_authority(text: str) -> Authority | None:
    """The address or name in `Host` or after the scheme of an origin; None if it is neither.

    Only dotted quads are IPv4 addresses: browsers send no other spelling, so `127.1` is refused.
    """
    # Lower case turns some letters outside ASCII into ASCII letters, so those are refused first.
    parts = _AUTHORITY.fullmatch(text.lower()) if text.isascii() else None
    if parts is None:
        return None
    port = int(parts[2]) if parts[2] else None
    if port is not None and port > _MAX_PORT:
        return None
    host = parts[1]
    try:
        if host.startswith("["):
            return Authority(f"[{IPv6Address(host[1:-1])}]", port, is_address=True)
        # No top-level domain is a number, so a host that ends in a number must be an address.
        name = host.removesuffix(".")
        if name.rpartition(".")[2].isdigit():
            return Authority(str(IPv4Address(host)), port, is_address=True)
    except ValueError:
        return None
    if len(name) > MAX_HOST_CHARACTERS or _LABELS.fullmatch(name) is None:
        return None
    return Authority(name, port, is_address=False)


def parse_origin(text: str) -> tuple[str, Authority] | None:
    """The scheme and the authority of an origin, or None. The port is None if it is the scheme's default."""
    parts = _ORIGIN.fullmatch(text.lower())
    authority = parse_authority(parts[2]) if parts else None
    if parts is None or authority is None:
        return None
    return parts[1], without_default_port(parts[1], authority)


def without_default_port(scheme: str, authority: Authority) -> Authority:
    """The authority without its port if that is the default of `scheme`."""
    if authority.port is not None and authority.port == _DEFAULT_PORTS.get(scheme):
        return Authority(authority.host, None, authority.is_address)
    return authority


def allowed_host(text: str) -> str:
    """One name of `GAPLESS_ALLOWED_HOSTS`, in the form that is compared. Raises ValueError that says what is
    wrong."""
    authority = parse_authority(text)
    if authority is None or authority.is_address or authority.port is not None or text.endswith(":"):
        raise ValueError(
            f"{text!r} is not a host name; give names such as chat.example.org, without scheme, port or path"
        )
    return authority.host


def allowed_origin(text: str) -> str:
    """One origin of `GAPLESS_ALLOWED_ORIGINS`, in the form that browsers send. Raises ValueError that says
    what is wrong."""
    found = parse_origin(text)
    if found is None:
        raise ValueError(
            f"{text!r} is not an origin; give origins such as https://chat.example.org, without a path."
            " * and null are refused: every page could be one of them"
        )
    scheme, authority = found
    port = "" if authority.port is None else f":{authority.port}"
    return f"{scheme}://{authority.host}{port}"
