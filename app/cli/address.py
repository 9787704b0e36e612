"""The address of `serve` for clients on the same machine."""

from __future__ import annotations

import ipaddress


def address_of(host: str, port: int) -> str:
    """The URL for a listening address. An address that means every interface is reached on loopback."""
    return f"http://{_reachable(host)}:{port}"


def served_at() -> str:
    """The URL of a `serve` with the same variables and the same file. Raises `Failure`."""
    from gapless_cli.failures import usage

    from app.cli.settings import settings_from

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
