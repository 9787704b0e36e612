"""Request heads: media types, encodings, conditional headers, and reading bodies within a limit."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from app.http.body import decompress, read_body
from app.message.head import Form, PublishHead, read_head
from subscriptions.domain.errors import Code, GaplessError

JSON = (b"content-type", b"application/json")


def refused(headers: Iterable[tuple[bytes, bytes]]) -> GaplessError:
    with pytest.raises(GaplessError) as caught:
        read_head(headers)
    return caught.value


@pytest.mark.parametrize(
    ("content_type", "form"),
    [
        (b"application/json", Form.JSON),
        (b"Application/JSON ; charset=UTF-8", Form.JSON),
        (b'application/json;charset="utf-8"', Form.JSON),
        (b"application/cloudevents+json; charset=utf-8", Form.EVENT),
        (b"application/cloudevents-batch+json", Form.EVENTS),
    ],
)
def test_media_types(content_type: bytes, form: Form) -> None:
    assert read_head([(b"host", b"x"), (b"content-type", content_type)]).form is form


@pytest.mark.parametrize(
    "content_type",
    [
        b" ",
        b"text/plain",
        b"application/xml",
        b"application/json; charset=latin-1",
        b"application/jsonx",
        b"\xff",
    ],
)
def test_other_media_types(content_type: bytes) -> None:
    assert refused([(b"content-type", content_type)]).code is Code.UNSUPPORTED_MEDIA_TYPE


async def test_without_a_media_type_there_may_be_no_body() -> None:
    for headers in ([], [(b"content-type", b"")], [(b"content-encoding", b"gzip")]):
        bare = read_head(headers)
        assert bare.form is Form.JSON
        assert await read_body(receiver(), bare) == b"{}"
        with pytest.raises(GaplessError) as caught:
            await read_body(receiver(b"{}"), bare)
        assert caught.value.code is Code.UNSUPPORTED_MEDIA_TYPE


@pytest.mark.parametrize("media_type", [b"text/plain", b"application/merge-patch+json"])
def test_only_routes_that_read_events_speak_of_them(media_type: bytes) -> None:
    asked = [(b"content-type", media_type)]
    assert "CloudEvent" in refused(asked).detail
    with pytest.raises(GaplessError) as caught:
        read_head(asked, events=False)
    assert caught.value.detail == "Content-Type must be application/json"


def test_binary_mode_takes_any_media_type() -> None:
    event = [(b"ce-specversion", b"1.0"), (b"ce-id", b"7"), (b"content-type", b"image/png")]
    head = read_head(event)
    assert (head.form, head.event, head.media_type) == (
        Form.BINARY_EVENT,
        {"specversion": b"1.0", "id": b"7"},
        "image/png",
    )
    assert read_head([event[0], (b"content-type", b"application/cloudevents+json")]).form is Form.EVENT


def test_encodings() -> None:
    assert read_head([JSON, (b"content-encoding", b"GZIP")]).gzip
    assert not read_head([JSON, (b"content-encoding", b"identity")]).gzip
    for encoding in (b"br", b"deflate", b"gzip, gzip", b"zstd"):
        assert refused([JSON, (b"content-encoding", encoding)]).code is Code.UNSUPPORTED_MEDIA_TYPE


def test_conditional_headers() -> None:
    head = read_head([JSON, (b"idempotency-key", b"k" * 255), (b"expected-last-seq", b"0")])
    assert (head.idempotency_key, head.expected_last_seq) == ("k" * 255, 0)
    assert read_head([JSON, (b"expected-last-seq", b"9007199254740992")]).expected_last_seq == 2**53


@pytest.mark.parametrize("key", [b"", b"k" * 256, "ключ".encode(), b"a\tb", b"a\x00b", b"\x7f", b"a\nb"])
def test_bad_idempotency_keys(key: bytes) -> None:
    error = refused([JSON, (b"idempotency-key", key)])
    assert (error.code, error.status) == (Code.INVALID_REQUEST, 400)


@pytest.mark.parametrize(
    "seq", [b"", b"-1", b"+1", b"1.0", b"1e3", b"x", b"9007199254740993", b"9" * 5000, "٣".encode(), b"1 "]
)
def test_bad_expected_seqs(seq: bytes) -> None:
    error = refused([JSON, (b"expected-last-seq", seq)])
    assert (error.code, error.status) == (Code.INVALID_REQUEST, 400)


@pytest.mark.parametrize("name", [b"content-type", b"idempotency-key", b"expected-last-seq", b"ce-id"])
def test_repeated_headers(name: bytes) -> None:
    assert refused([(name, b"1"), (name, b"1")]).status == 400


def head(gzipped: bool = False, length: int | None = None) -> PublishHead:
    return PublishHead(Form.JSON, "application/json", gzipped, length, None, None, {})


def receiver(*chunks: bytes, then: str = "http.request") -> Any:
    events = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    events.append({"type": then, "body": b"", "more_body": False})

    async def receive() -> dict[str, Any]:
        return events.pop(0)

    return receive


async def test_reads_chunks() -> None:
    assert await read_body(receiver(b"ab", b"cd"), head()) == b"abcd"


async def test_refuses_by_announced_length_without_reading() -> None:
    async def receive() -> dict[str, Any]:
        raise AssertionError("nothing may be read")

    with pytest.raises(GaplessError) as caught:
        await read_body(receive, head(length=11), limit=10)
    assert caught.value.code is Code.PAYLOAD_TOO_LARGE


@pytest.mark.parametrize("chunks", [[b"x" * 11], [b"x" * 6, b"x" * 5]])
async def test_refuses_by_what_arrives(chunks: list[bytes]) -> None:
    with pytest.raises(GaplessError) as caught:
        await read_body(receiver(*chunks), head(), limit=10)
    assert caught.value.code is Code.PAYLOAD_TOO_LARGE


async def test_a_client_that_leaves() -> None:
    with pytest.raises(ClientDisconnect):
        await read_body(receiver(b"x", then="http.disconnect"), head())


async def test_gzip() -> None:
    raw = gzip.compress(b"x" * 10, mtime=0)
    assert await read_body(receiver(raw), head(gzipped=True), limit=100) == b"x" * 10
    assert decompress(raw + gzip.compress(b"y"), 11) == b"x" * 10 + b"y"


pack = partial(gzip.compress, mtime=0)
"""Names of tests tell the bytes, and must be the same in every process."""


@pytest.mark.parametrize("raw", [b"", b"x", pack(b"x")[:-1], pack(b"x") + b"x", pack(b"") * 17])
def test_broken_gzip(raw: bytes) -> None:
    with pytest.raises(GaplessError) as caught:
        decompress(raw, 100)
    assert (caught.value.code, caught.value.status) == (Code.INVALID_REQUEST, 400)


@pytest.mark.parametrize("raw", [pack(b"x" * 101), pack(b"x" * 60) * 2, pack(bytes(10**8))])
def test_gzip_bombs(raw: bytes) -> None:
    with pytest.raises(GaplessError) as caught:
        decompress(raw, 100)
    assert caught.value.code is Code.PAYLOAD_TOO_LARGE
