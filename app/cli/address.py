"""Where `serve` listens, for whoever talks to it from the same machine."""

from __future__ import annotations

import ipaddress


def address_of(host: str, port: int) -> str:
    """Where to knock for an address to listen on: one that means every interface is asked on loopback."""
    return f"http://{_reachable(host)}:{port}"


def served_at() -> str:
    """Where a `serve` with the same variables and the same file listens. Raises `Failure`."""
    from app.cli.failures import usage
    from app.cli.serve import settings_from

    settings = settings_from()
    if settings.port == 0:
        raise usage("GAPLESS_PORT is 0, so the server takes any free port: say where by --url or GAPLESS_URL")
    return address_of(settings.host, settings.port)


def _reachable(host: str) -> str:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "[::1]"
    return f"[{host}]" if address.version == 6 else host
