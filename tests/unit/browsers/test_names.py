"""Hosts and origins as text."""

from __future__ import annotations

import pytest

from app.http.browsers.names import allowed_host, allowed_origin, parse_authority, parse_origin


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080),
        ("LOCALHOST.", "localhost", None),
        ("localhost:", "localhost", None),
        ("[::1]:8080", "[::1]", 8080),
        ("[0:0:0:0:0:0:0:1]", "[::1]", None),
        ("[::FFFF:127.0.0.1]", "[::ffff:7f00:1]", None),
        ("gapless-1.svc_a.example", "gapless-1.svc_a.example", None),
    ],
)
def test_an_authority_is_an_address_or_a_name_and_a_port(text: str, host: str, port: int | None) -> None:
    found = parse_authority(text)
    assert found is not None
    assert (found.host, found.port) == (host, port)


NO_AUTHORITY = [
    "",
    ":",
    ":80",
    ".",
    "..",
    "a..b",
    ".a",
    "a b",
    "a\tb",
    "a/b",
    "a@b",
    "user:secret@localhost",
    "localhost:x",
    "localhost:-1",
    "localhost:65536",
    "localhost:123456",
    "::1",
    "[::1",
    "::1]",
    "[::1]x",
    "[::1].evil",
    "[]",
    "[1.2.3.4]",
    "[fe80::1%25eth0]",
    "[::1]:x",
    "127.1",
    "127.0.0.1.",
    "0x7f.0.0.1",
    "0x7f000001:80",
    "2130706433",
    "127.0.0.256",
    "0127.0.0.1",
    "1.2.3.4.5",
    "evil.1",
    "чат",
    "localhost\u0000",
    "localhost,evil",
    "a" * 64,
    "a." * 127 + "a",
    "localhost%00",
    "localho\u017ft",
    "\uff4cocalhost",
    "lo\u212aalhost",
    "\u0661.1.1.1",
]


@pytest.mark.parametrize("text", [*NO_AUTHORITY])
def test_what_is_neither_is_no_authority(text: str) -> None:
    found = parse_authority(text)
    # A hexadecimal label is a name like any other to us, and nobody's own.
    assert found is None or (text.startswith("0x7f0") and not found.is_address)


@pytest.mark.parametrize(
    "text",
    [
        "null",
        "*",
        "",
        "file://",
        "https://",
        "https://a/",
        "https://a/b",
        "https://a?b",
        "https://u@a",
        "a.example",
        "https://a b",
        "//a",
        "https://a:x",
        "http://a, http://b",
        "about:blank",
        "data:text/html,x",
    ],
)
def test_what_is_no_origin(text: str) -> None:
    assert parse_origin(text) is None
    with pytest.raises(ValueError, match="is not an origin"):
        allowed_origin(text)


@pytest.mark.parametrize(
    ("given", "compared"),
    [
        ("https://Chat.Example.org", "https://chat.example.org"),
        ("https://chat.example.org:443", "https://chat.example.org"),
        ("http://chat.example.org:443", "http://chat.example.org:443"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("capacitor://localhost", "capacitor://localhost"),
        ("chrome-extension://abcdefghijklmnop", "chrome-extension://abcdefghijklmnop"),
    ],
)
def test_an_allowed_origin_is_written_as_browsers_do(given: str, compared: str) -> None:
    assert allowed_origin(given) == compared


def test_an_allowed_host_is_a_name_alone() -> None:
    assert allowed_host("Chat.Example.org.") == "chat.example.org"
    for wrong in ("10.0.0.1", "[::1]", "a:80", "a:", "https://a", "a/b", "*.a", "*", ""):
        with pytest.raises(ValueError, match="is not a host name"):
            allowed_host(wrong)
