"""The two faces are one interface, and the settings they share."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from gapless import (
    AsyncClient,
    AsyncConsumer,
    AsyncDelivery,
    AsyncStream,
    Client,
    Consumer,
    Delivery,
    Stream,
)
from gapless._async.nouns import AsyncNouns
from gapless._call import Request
from gapless._config import Config
from gapless._streams.interest import Interest
from gapless._sync.nouns import Nouns
from gapless._transport import build

from tests.support import ROOT

RENAMED = {"aclose": "close", "__aenter__": "__enter__", "__aexit__": "__exit__"}
RENAMED |= {"__aiter__": "__iter__", "__anext__": "__next__"}
SPECIAL = {"__init__", *RENAMED, *RENAMED.values()}
TYPES = [("async with", "with"), ("Async", "")]


def methods(kind: type[Any]) -> dict[str, str]:
    """The public methods with their signatures and promises, as text."""
    found = {}
    everything = {name: member for base in reversed(kind.__mro__[:-1]) for name, member in vars(base).items()}
    for name, member in everything.items():
        if name.startswith("_") and name not in SPECIAL:
            continue
        text = f"{inspect.signature(member)} {inspect.getdoc(member)}" if callable(member) else "property"
        for asynchronous, blocking in TYPES:
            text = text.replace(asynchronous, blocking)
        found[RENAMED.get(name, name)] = text.replace("another task", "another thread")
    return found


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (AsyncClient, Client),
        (AsyncStream, Stream),
        (AsyncConsumer, Consumer),
        (AsyncDelivery, Delivery),
    ],
)
def test_both_faces_offer_the_same_under_the_same_names(one: type[Any], other: type[Any]) -> None:
    found = methods(one)
    if one is AsyncClient:
        del found["connect"]  # One socket for many callers would need threads of its own.
    assert found == methods(other)


@pytest.mark.parametrize("noun", [name for name in vars(AsyncNouns) if not name.startswith("_")])
def test_both_faces_have_the_same_nouns_with_the_same_verbs(noun: str) -> None:
    one, other = (get_type_hints(getattr(face, noun).fget)["return"] for face in (AsyncNouns, Nouns))
    assert methods(one) == methods(other)
    assert len(methods(one)) > 2


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GAPLESS_URL", raising=False)
    monkeypatch.delenv("GAPLESS_TOKEN", raising=False)
    monkeypatch.delenv("GAPLESS_TOKEN_FILE", raising=False)
    assert Config.resolve(None, None, 1, None).base_url == "http://127.0.0.1:8080"
    monkeypatch.setenv("GAPLESS_URL", "https://chat.example/gapless/")
    monkeypatch.setenv("GAPLESS_TOKEN", "from-the-environment\n")
    config = Config.resolve(None, None, 1, None)
    assert config.base_url == "https://chat.example/gapless"
    assert config.headers()["Authorization"] == "Bearer from-the-environment"
    assert Config.resolve("http://other", "mine", 1, None).headers()["Authorization"] == "Bearer mine"


def test_a_token_in_a_file_is_read_at_each_request(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "token"
    monkeypatch.delenv("GAPLESS_TOKEN", raising=False)
    monkeypatch.setenv("GAPLESS_TOKEN_FILE", str(path))
    config = Config.resolve(None, None, 1, None)
    assert config.renews_token
    with pytest.raises(ValueError, match="GAPLESS_TOKEN_FILE cannot be read"):
        config.headers()
    for text in ("one\n", "two"):
        path.write_text(text)
        assert config.headers()["Authorization"] == f"Bearer {text.strip()}"
    path.write_text("\n")
    with pytest.raises(ValueError, match="GAPLESS_TOKEN_FILE is empty"):
        config.headers()
    assert not Config.resolve(None, "mine", 1, None).renews_token
    monkeypatch.setenv("GAPLESS_TOKEN", "another")
    with pytest.raises(ValueError, match="not both"):
        Config.resolve(None, None, 1, None)


@pytest.mark.parametrize(
    "url", ["chat.example", "ftp://chat.example", "http://", "http://a?x=1", "http://a#b"]
)
def test_an_address_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError):
        Client(url)


@pytest.mark.parametrize("timeout", [0, -1])
def test_a_timeout_without_sense_is_refused(timeout: float) -> None:
    with pytest.raises(ValueError):
        Client(timeout=timeout)


def test_a_stream_bounds_silence_and_a_call_each_wait() -> None:
    with Client("http://gapless.test", timeout=3) as client:
        call = build(client._pool.http, client._config, Request("GET", "/"))
        stream = build(client._pool.http, client._config, Interest(("a",)).request(None))
    assert call.extensions["timeout"] == {"connect": 3, "read": 3, "write": 3, "pool": 3}
    assert stream.extensions["timeout"] == {"connect": 3, "read": 37.5, "write": 3, "pool": 3}


def test_no_representation_shows_the_token() -> None:
    with Client("http://gapless.test", token="secret-token") as client:
        assert "gapless.test" in repr(client)
        stream = client.subscribe("a", start=7)
        assert "not connected" in repr(stream)
        assert "7" in repr(stream)
        shown = repr((client, stream, client._config, vars(client), vars(stream)))
    assert "secret-token" not in shown


def test_the_blocking_face_is_what_the_asyncio_face_makes_of_it() -> None:
    script = ROOT / "client" / "unasync.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
