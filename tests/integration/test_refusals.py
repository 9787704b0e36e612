"""Failed credentials are limited by address, and the pages for everybody are a setting."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from app.http.refusals import BURST
from tests.conftest import Serve
from tests.integration.frames import Frames
from tests.integration.test_keys import EVERYTHING, bearer, make
from tests.patience import PATIENCE_S, eventually, http_client

BAD = f"gapless_{'a' * 12}_{'0' * 64}"


def client_at(url: str, address: str) -> httpx.AsyncClient:
    """A client whose address is this one of the machine's."""
    transport = httpx.AsyncHTTPTransport(local_address=address)
    return httpx.AsyncClient(base_url=url, transport=transport, timeout=PATIENCE_S)


async def until_limited(client: httpx.AsyncClient, **headers: str) -> httpx.Response:
    """Send requests without a good credential until they are limited; the answer."""
    for _ in range(100 * BURST):
        answers = await asyncio.gather(*(client.get("/v1/whoami", headers=headers) for _ in range(50)))
        limited = [answer for answer in answers if answer.status_code != 401]
        if limited:
            return limited[0]
    raise AssertionError("never limited")


async def test_bad_credentials_are_limited_and_good_ones_and_other_addresses_are_not(serve: Serve) -> None:
    service = serve()
    async with http_client(service.url) as client, client_at(service.url, "127.0.0.2") as other:
        root = (await make(client, "root", EVERYTHING))["key"]
        limited = await until_limited(other)
        assert (limited.status_code, limited.json()["code"]) == (429, "rate_limited")
        assert limited.json()["retryable"] is True
        assert int(limited.headers["retry-after"]) >= 1
        assert "www-authenticate" not in limited.headers
        for sent in (
            bearer("nonsense"),
            bearer(BAD),
            {**bearer("nonsense"), "x-forwarded-for": "203.0.113.9"},
        ):
            assert (await until_limited(other, **sent)).status_code == 429
        assert (await other.get("/v1/whoami", headers=bearer(root))).status_code == 200
        assert (await client.get("/v1/whoami")).status_code == 401

        frames = await Frames.open(service.url, connected=False, local_addr=("127.0.0.2", 0))

        async def too_many() -> bool:
            await until_limited(other)
            said = await frames.ask("connect", token="nonsense")
            return bool(said["error"]["code"] == 111)

        await eventually(too_many)
        metrics = (await client.get("/metrics", headers=bearer(root))).text
        assert 'gapless_credentials_refused_total{outcome="limited"}' in metrics


async def test_clients_behind_a_proxy_are_told_apart(serve: Serve) -> None:
    service = serve(GAPLESS_PROXIES="127.0.0.2/32, 10.0.0.0/8")
    async with http_client(service.url) as client, client_at(service.url, "127.0.0.2") as proxy:
        await make(client, "root", EVERYTHING)
        limited = await until_limited(proxy, **{"x-forwarded-for": "203.0.113.9"})
        assert limited.status_code == 429
        again = await proxy.get("/v1/whoami", headers={"x-forwarded-for": "203.0.113.9, 198.51.100.7"})
        assert again.status_code == 401


async def seen(url: str, *paths: str, **options: Any) -> list[int]:
    async with http_client(url) as client:
        return [(await client.get(path, **options)).status_code for path in paths]


async def test_metrics_and_documents_are_open_or_off_by_settings(serve: Serve) -> None:
    pages = ("/metrics", "/openapi.json", "/asyncapi.json", "/docs", "/")
    service = serve(GAPLESS_METRICS="open", GAPLESS_DOCUMENTS="open")
    async with http_client(service.url) as client:
        root = (await make(client, "root", EVERYTHING))["key"]
    assert await seen(service.url, *pages) == [200] * 5
    assert await seen(service.url, "/v1/channels", "/v1/keys") == [401, 401]
    service.kill()
    service = serve(GAPLESS_METRICS="off", GAPLESS_DOCUMENTS="off")
    assert await seen(service.url, *pages, headers=bearer(root)) == [404, 404, 404, 404, 200]
    assert await seen(service.url, "/v1/channels", headers=bearer(root)) == [200]
