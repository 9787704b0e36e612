"""Whom a client trusts over TLS."""

from __future__ import annotations

import ssl

import pytest
from gapless._transport import AsyncPool, Pool


async def trusted(base_url: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many certificates each face trusts."""
    counts: list[int] = []

    def noted(**settings: object) -> None:
        context = settings["verify"]
        assert isinstance(context, ssl.SSLContext)
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname
        counts.append(context.cert_store_stats()["x509_ca"])

    monkeypatch.setattr("httpx.Client", noted)
    monkeypatch.setattr("httpx.AsyncClient", noted)
    Pool(None, base_url)
    AsyncPool(None, base_url)
    return counts


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


async def test_certificates_are_loaded_for_https_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await trusted("http://gapless.example", monkeypatch) == [0, 0]
    assert min(await trusted("HTTPS://gapless.example", monkeypatch)) > 50


async def test_a_proxy_over_tls_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "https://proxy.example:8443")
    assert min(await trusted("http://gapless.example", monkeypatch)) > 50
