"""Whether a request may have come from another machine."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

from starlette.types import Scope


def is_local(scope: Scope) -> bool:
    """Whether the request came over an address that other machines cannot reach. A server that names no
    address is no server of a network."""
    host, port = scope.get("server") or ("", None)
    return port is None or is_loopback(host)  # A socket in the file system has no port.


@lru_cache(64)
def is_loopback(host: str) -> bool:
    """Whether this address is of this machine alone."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)  # IPv4 over a socket of IPv6
    return (mapped or address).is_loopback
