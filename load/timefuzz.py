"""`python -m load.timefuzz`: fuzzes every parser for slow inputs.

Texts of repeated pieces, up to eight megabytes, go to all code that reads clients' input: bodies of every
kind, gzip, queries, headers, names, cursors, framing. A check whose time grows faster than its input takes
seconds here. No answer, and no other request meanwhile, may take more than 5 s. A slow text is reported by
its seed and number: the same seed and size make it again.
"""

from __future__ import annotations

import asyncio
import gzip
import random
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import quote_from_bytes

from load import drill
from load.drill import say
from load.relay import connected
from load.server import serving
from load.verdict import Breach, Verdict
from load.wire import Connection, Target

LIMIT_S = 5.0
PING_EVERY_S = 0.02
HEAD_BYTES = 12_000
JSON_PIECES = (
    *(b"[", b"]", b"{", b"}", b",", b":", b'"', b"\\", b'\\"', b"\\u0000", b"\\ud800", b" ", b"\n", b"\xff"),
    *(b"1", b"0." + b"1" * 7_000, b"1" * 7_499, b"e-100", b"1e-300", b"0e-999", b"1e999", b"-", b"NaN"),
    *(
        b'"a":',
        b'"a":1,',
        b"[],",
        b"{},",
        b"null,",
        b'"x - at `$.",',
        b'{"data":1},',
        b'{"channel":"c","data":1},',
    ),
)
JSON_UNITS = (
    b"[],",
    b"{},",
    b"1,",
    b'"' + b"1" * 7_499 + b'",',
    b'"\\"",',
    b'"e-",',
    b'"":",',
    b"0e-300,",
    b"1e-300,",
)
JSON_ENDS = (
    *((b"[", b"0]"), (b'{"data":[', b"0]}"), (b'[{"data":[', b"0]}]"), (b'{"x":[', b"0]}")),
    *(
        (b'{"messages":[{"channel":"c","data":[', b"0]}]}"),
        (b'{"publish":[{"channel":"c","data":[', b"0]}]}"),
    ),
    *(
        (b'{"specversion":"1.0","type":"t","id":"1","source":"s","data":[', b"0]}"),
        (b'{"receipts":[', b'"x"]}'),
    ),
)
"""`JSON_UNITS` between these make nearly valid texts, which are parsed further than other invalid texts."""
TEXT_PIECES = (
    *(b"a", b"a.", b".", b"*", b"*.", b">", b"~", b"9", b"-", b"+", b":", b"%", b"%00", b"%2A", b"\xc3\xa9"),
    *(b"2026-11-22T", b"1d", b"=", b"&", b"&type=a", b";", b",", b"/", b"text/", b'"', b" "),
)
CHUNK_PIECES = (b"1\r\na\r\n", b"1;x=y\r\na\r\n", b"0", b"00001\r\na\r\n", b"\r\n", b"f", b";", b"a:b\r\n")


@dataclass(frozen=True, slots=True)
class Face:
    """One parser: the pieces of its texts (`TEXT_PIECES` go into a head), and the request with a text.
    `ends` is false if the request may be incomplete; then the client closes its side after it."""

    name: str
    pieces: tuple[bytes, ...]
    request: Callable[[Target, bytes], bytes]
    ends: bool = True


def _posted(path: str, media_type: str = "application/json", *, zipped: bool = False) -> Callable[..., bytes]:
    def made(target: Target, text: bytes) -> bytes:
        headers = {"Content-Type": media_type}
        if zipped:
            headers["Content-Encoding"] = "gzip"
            text = gzip.compress(text, 1)
        return target.request(path.partition(" ")[0], path.partition(" ")[2], text or b" ", headers)

    return made


def _asked(before: str, after: str = "") -> Callable[..., bytes]:
    return lambda target, text: target.request(
        "GET", f"{before}{quote_from_bytes(text, '*>&=%')[:HEAD_BYTES]}{after}"
    )


def _told(path: str, name: str) -> Callable[..., bytes]:
    def made(target: Target, text: bytes) -> bytes:
        value = text.replace(b"\r", b"").replace(b"\n", b"").decode("latin-1")
        return target.request("GET", path).replace(
            b"\r\n\r\n", f"\r\n{name}: {value}\r\n\r\n".encode("latin-1")
        )

    return made


def _chunked(target: Target, text: bytes) -> bytes:
    head = target.request("POST", "/v1/channels/c/messages", b"", {"Content-Type": "application/json"})
    return head.replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") + text + b"0\r\n\r\n"


MESSAGES = "POST /v1/channels/c/messages"
FACES = (
    Face("publish", JSON_PIECES, _posted(MESSAGES)),
    Face("publish, gzip", JSON_PIECES, _posted(MESSAGES, zipped=True)),
    Face("batch", JSON_PIECES, _posted("POST /v1/messages")),
    Face("event", JSON_PIECES, _posted(MESSAGES, "application/cloudevents+json")),
    Face("events", JSON_PIECES, _posted(MESSAGES, "application/cloudevents-batch+json")),
    Face("transaction", JSON_PIECES, _posted("POST /v1/transactions")),
    Face("definitions", JSON_PIECES, _posted("POST /v1/definitions?dry_run=true")),
    Face("subscription", JSON_PIECES, _posted("PUT /v1/subscriptions/s")),
    Face("channel", JSON_PIECES, _posted("PUT /v1/channels/c")),
    Face("policy", JSON_PIECES, _posted("PUT /v1/policies/p")),
    Face("pull", JSON_PIECES, _posted("POST /v1/subscriptions/s/pull")),
    Face("ack", JSON_PIECES, _posted("POST /v1/subscriptions/s/ack")),
    Face("nack", JSON_PIECES, _posted("POST /v1/subscriptions/s/nack")),
    Face("purge", JSON_PIECES, _posted("POST /v1/dead-letters/purge")),
    Face("chunked", CHUNK_PIECES, _chunked, ends=False),
    Face("channel name", TEXT_PIECES, _asked("/v1/channels/", "/messages")),
    Face("subscribed pattern", TEXT_PIECES, _asked("/v1/subscribe?channel=")),
    Face("query", TEXT_PIECES, _asked("/v1/subscribe?")),
    Face("since", TEXT_PIECES, _asked("/v1/channels/c/messages?since=")),
    Face("history query", TEXT_PIECES, _asked("/v1/channels/c/messages?")),
    Face("listed pattern", TEXT_PIECES, _asked("/v1/channels?pattern=")),
    Face("list cursor", TEXT_PIECES, _asked("/v1/dead-letters?cursor=")),
    Face("accept", TEXT_PIECES, _told("/v1/channels/c/messages", "Accept")),
    Face("last event id", TEXT_PIECES, _told("/v1/subscribe?channel=c", "Last-Event-ID")),
    Face("content type", TEXT_PIECES, _told("/v1/channels/c/messages", "Content-Type")),
)


def text_of(chance: random.Random, pieces: tuple[bytes, ...], size: int) -> bytes:
    """A text with a beginning, a repeated unit and an end; sometimes one of random pieces."""

    def few(most: int) -> bytes:
        return b"".join(chance.choices(pieces, k=chance.randint(0, most)))

    if pieces is JSON_PIECES and chance.random() < 0.5:
        first, last = chance.choice(JSON_ENDS)
        unit = b"".join(chance.choices(JSON_UNITS, k=chance.randint(1, 3)))
        return first + unit * (size // chance.choice((1, 3, 9, 40)) // len(unit)) + last
    unit = few(4) or chance.choice(pieces)
    before, after = few(3), few(3)
    size = chance.choice((size, size // 3, size // 40))
    if chance.random() < 0.1:
        return b"".join(chance.choices(pieces, k=max(1, size // 400)))[:size]
    return before + unit * max(1, (size - len(before) - len(after)) // len(unit)) + after


@dataclass(slots=True)
class Findings:
    """The slowest answer of each face, how long any other request waited, and the verdict on both."""

    slowest: dict[str, float] = field(default_factory=dict)
    texts: int = 0
    other_s: float = 0.0
    verdict: Verdict = field(default_factory=lambda: Verdict((Breach.SLOW,)))

    def add(self, face: str, seconds: float, case: str) -> None:
        """Note the seconds that one text took."""
        self.texts += 1
        self.slowest[face] = max(self.slowest.get(face, 0.0), seconds)
        self.verdict.add(Breach.SLOW, f"{face}: {seconds:.1f} s ({case})", count=seconds > LIMIT_S)


async def answered(target: Target, request: bytes, ends: bool) -> None:
    """Wait for the status of the answer, or the end of the connection. Without `ends` the client's side is
    closed after the request, so that the server ends an incomplete one."""
    async with connected(target.host, target.port) as (reader, writer):
        writer.write(request)
        with suppress(OSError, TimeoutError):
            if not ends:
                writer.write_eof()
            async with asyncio.timeout(8 * LIMIT_S):
                await reader.read(12)


async def pinging(target: Target, found: Findings) -> None:
    """Send small requests repeatedly. A parser that blocks the process delays them."""
    connection = await Connection.open(target)
    while True:
        began = time.monotonic()
        await connection.ask(target.request("GET", "/healthz"))
        found.other_s = max(found.other_s, time.monotonic() - began)
        await asyncio.sleep(PING_EVERY_S)


async def run(seconds: float, seed: int, size: int) -> Findings:
    """Fuzz for so many seconds, each face in turn."""
    found = Findings()
    chance = random.Random(seed)
    async with serving() as server:
        until = time.monotonic() + seconds
        ping = asyncio.create_task(pinging(server.target, found))
        while not found.texts or time.monotonic() < until:
            for face in FACES:
                case = f"seed {seed}, text {found.texts}"
                text = text_of(chance, face.pieces, HEAD_BYTES if face.pieces is TEXT_PIECES else size)
                request = face.request(server.target, text)
                began = time.monotonic()
                await answered(server.target, request, face.ends)
                found.add(face.name, time.monotonic() - began, case)
            if ping.done():
                found.verdict.add(Breach.FAILED, f"another request: {ping.exception()}")
                break
        ping.cancel()
    late = f"another request waited {found.other_s:.1f} s"
    found.verdict.add(Breach.SLOW, late, count=found.other_s > LIMIT_S)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run once."""
    parser = drill.parser("timefuzz", __doc__, "", "--minutes 10 --seed 7", "--minutes 0.02 --bytes 100000")
    drill.add_minutes(parser, 2.0)
    drill.add_seed(parser)
    parser.add_argument("--bytes", type=int, default=8_000_000, help="the size of the longest text")
    asked = parser.parse_args(arguments)

    def play() -> Verdict:
        found = asyncio.run(run(60 * asked.minutes, asked.seed, asked.bytes))
        for name, worst in sorted(found.slowest.items(), key=lambda item: -item[1]):
            say(f"{worst:7.3f} s  {name}")
        waited = f"another request waited {found.other_s:.2f} s at most"
        found.verdict.checked = f"{found.texts} texts, seed {asked.seed}; {waited}"
        return found.verdict

    return drill.conclude(drill.played(play))


if __name__ == "__main__":
    sys.exit(main())
