"""The address: free to listen on, or a Gapless that answers there."""

from __future__ import annotations

import socket

import httpx

from app.cli.address import address_of
from app.cli.doctor.check import Check, fail, ok, warn
from app.process.settings import Settings

TIMEOUT_S = 3.0


def checks(settings: Settings, required: bool) -> list[Check]:
    """Who may reach it, and who answers. `required`: every request needs a credential."""
    return [_openness(settings, required), _port(settings.host, settings.port)]


def _openness(settings: Settings, required: bool) -> Check:
    if required:
        return ok("access", f"{settings.host}: who has a credential")
    if settings.loopback_only:
        return ok("access", f"{settings.host}: this machine only")
    if settings.allow_anonymous:
        advice = "make sure that a proxy or the network keeps others out"
        return warn(
            "access", f"{settings.host}, without credentials, as GAPLESS_ALLOW_ANONYMOUS says", advice
        )
    advice = (
        "serve refuses this without credentials: make a key with gapless keys create, listen on 127.0.0.1, or"
        " set GAPLESS_ALLOW_ANONYMOUS=1"
    )
    return fail("access", f"{settings.host} can be reached from other machines", advice)


def _port(host: str, port: int) -> Check:
    if port == 0:
        return ok("port", "0: any free one")
    url = address_of(host, port)
    try:
        answer = httpx.get(f"{url}/readyz", timeout=TIMEOUT_S)
    except httpx.ConnectError:
        return _free(host, port)
    except (httpx.RequestError, httpx.InvalidURL) as error:
        advice = "see what runs there, or set GAPLESS_PORT"
        return fail("port", f"{url} takes connections and gives no answer ({type(error).__name__})", advice)
    return _answered(url, answer)


def _answered(url: str, answer: httpx.Response) -> Check:
    try:
        body = answer.json()
    except ValueError:
        body = None
    if not isinstance(body, dict) or not {"status", "code"} & body.keys():
        return fail("port", f"{url}: something else than Gapless answers", "set GAPLESS_PORT to another one")
    if answer.status_code != httpx.codes.OK:
        detail = f"{url}: a Gapless that is not ready: {body.get('detail', answer.status_code)}"
        return fail("port", detail, "see its log")
    if body.get("redis") is False:
        return warn("port", f"{url}: Gapless is ready, without Redis", "delivery waits for the sweep (1 s)")
    return ok("port", f"{url}: Gapless is ready")


def _free(host: str, port: int) -> Check:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return fail("port", f"{host}:{port}: {error.strerror}", "set GAPLESS_HOST or GAPLESS_PORT")
    return ok("port", f"{host}:{port} is free; no server runs there")
