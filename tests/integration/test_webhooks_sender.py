"""Webhooks against real servers on loopback: what arrives, what comes back, what nobody can make them do."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trustme
from prometheus_client import REGISTRY
from standardwebhooks import Webhook

from app.faces.webhooks.limiter import FIRST_PLACES, MAX_CONNECTIONS, MAX_CONNECTIONS_A_HOST
from app.faces.webhooks.outcome import Crowded, Delivered, Failed, Gone, Outcome
from app.faces.webhooks.sender import KEEP_ALIVE_S, MAX_ANSWER_BYTES, MAX_DRAIN_S, Sender, Sending, Target
from load.relay import listening
from tests.hook import SECRET, Answer, Hook, hook, reply, silence
from tests.integration.sending import Internet, Names, TimeOuts, drip
from tests.patience import cancel, eventually, in_time

OK = reply("200 OK", "connection: close")
BODY = b'{"id": 42, "channel": "orders.eu", "data": {"n": 1}}'
LONG_S = 3600.0
"""The time-out of every delivery. No test waits for it: it is over when a test says so."""
NO_ANSWER = Failed("gave no answer within 3600 s")


@pytest.fixture(autouse=True)
def time_outs(monkeypatch: pytest.MonkeyPatch) -> TimeOuts:
    made = TimeOuts()
    monkeypatch.setattr("app.faces.webhooks.sender.asyncio.timeout", made.begin)
    # An idle connection stays open, however slowly its next request comes.
    monkeypatch.setattr("app.faces.webhooks.sender.KEEP_ALIVE_S", LONG_S)
    return made


@pytest.fixture
async def sender() -> AsyncIterator[Sender]:
    made = Sender(allow_private=True)
    yield made
    await made.close()


@asynccontextmanager
async def closing(sender: Sender) -> AsyncIterator[Sender]:
    yield sender
    await sender.close()


async def post(sender: Sender, target: Target, timeout_s: float = LONG_S, attempt: int = 1) -> Outcome:
    """Send, and hold the promise that the outcome is there before the time is over."""
    return await in_time(sender.send(target, 42, "orders", attempt, BODY, timeout_s))


async def post_in_vain(
    sender: Sender, time_outs: TimeOuts, target: Target, stuck: Callable[[], object]
) -> Outcome:
    """Send to a server that does not answer. The time is over when it is `stuck`."""
    posting = asyncio.create_task(post(sender, target))
    await eventually(lambda: stuck() and time_outs.are(LONG_S))
    assert not posting.done()
    time_outs.end(LONG_S)
    return await posting


async def test_a_delivery_arrives_whole_and_verifies(sender: Sender) -> None:
    async with hook(reply("204 No Content")) as there:
        assert await post(sender, there.target(), attempt=3) == Delivered()
        ((first, headers, body),) = there.requests
        await sender.close()
    assert first == "POST /hook?a=b HTTP/1.1"
    assert body == BODY
    assert headers["host"] == f"127.0.0.1:{there.port}"
    assert headers["content-type"] == "application/json"
    assert headers["webhook-id"] == "msg_42_orders"
    assert (headers["gapless-subscription"], headers["gapless-attempt"]) == ("orders", "3")
    assert Webhook(SECRET).verify(body, headers)["id"] == 42


async def test_connections_are_used_again_while_they_are_fresh(sender: Sender) -> None:
    async with hook(reply("200 OK", body=b"thanks")) as there:
        for _ in range(3):
            assert await post(sender, there.target()) == Delivered()
        assert (there.connections, len(there.requests)) == (1, 3)
        there.answer = reply("200 OK", "connection: close")
        for _ in range(3):
            assert await post(sender, there.target()) == Delivered()
        assert (there.connections, len(there.requests)) == (3, 6)
        await sender.close()
    assert KEEP_ALIVE_S < 5, "what uvicorn and Node keep an idle connection for"


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (reply("200 OK"), Delivered()),
        (reply("202 Accepted", body=b"x" * 1000), Delivered()),
        (
            reply("500 Internal Server Error", body=b"stack trace"),
            Failed("answered 500 Internal Server Error"),
        ),
        (reply("404 <script>"), Failed("answered 404 Not Found")),
        (reply("410 Gone"), Gone()),
        (reply("429 Too Many Requests", "Retry-After: 120"), Failed("answered 429 Too Many Requests", 120.0)),
        (
            reply("503 Service Unavailable", "retry-after: 9999999"),
            Failed("answered 503 Service Unavailable", 86_400.0),
        ),
    ],
)
async def test_the_answer_decides(sender: Sender, answer: Answer, outcome: Outcome) -> None:
    async with hook(answer) as there:
        assert await post(sender, there.target()) == outcome
        await sender.close()


@pytest.mark.parametrize(
    "status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"]
)
async def test_a_redirect_is_a_failure_and_leads_nowhere(sender: Sender, status: str) -> None:
    async with hook(reply("200 OK")) as inside:
        async with hook(reply(status, f"location: http://127.0.0.1:{inside.port}/")) as there:
            outcome = await post(sender, there.target())
            await sender.close()
        assert isinstance(outcome, Failed)
        assert outcome.reason.endswith("redirects are not followed")
        assert inside.connections == 0


async def test_no_answer_is_bounded_and_the_connection_ended(sender: Sender, time_outs: TimeOuts) -> None:
    async with hook(silence) as there:
        outcome = await post_in_vain(sender, time_outs, there.target(), lambda: there.requests)
        await eventually(lambda: there.left == 1)
    assert outcome == NO_ANSWER


async def test_a_dripping_head_is_bounded(sender: Sender, time_outs: TimeOuts) -> None:
    drops = 0

    async def head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal drops
        writer.write(b"HTTP/1.1 200 OK\r\n")
        async for _ in drip(reader, writer, b"x: y\r\n"):
            drops += 1

    async with hook(head) as there:
        assert await post_in_vain(sender, time_outs, there.target(), lambda: drops > 5) == NO_ANSWER
        await eventually(lambda: there.left == 1)


@pytest.mark.parametrize("over", [LONG_S, MAX_DRAIN_S], ids=["the time of all", "the body's own"])
async def test_a_dripping_body_is_not_waited_for(sender: Sender, time_outs: TimeOuts, over: float) -> None:
    drops = 0

    async def chunked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal drops
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        async for _ in drip(reader, writer, b"1\r\nx\r\n"):
            drops += 1

    async with hook(chunked) as there:
        posting = asyncio.create_task(post(sender, there.target()))
        await eventually(lambda: drops > 5 and time_outs.are(LONG_S, MAX_DRAIN_S))
        assert not posting.done()
        time_outs.end(over)
        assert await posting == Delivered()
        await eventually(lambda: there.left == 1)


async def test_a_huge_body_is_not_read(sender: Sender) -> None:
    sent = 0

    async def huge(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 500 No\r\ncontent-length: 1000000000\r\n\r\n")
        while True:
            writer.write(bytes(MAX_ANSWER_BYTES))
            await writer.drain()
            sent += MAX_ANSWER_BYTES

    async with hook(huge) as there:
        assert await post(sender, there.target()) == Failed("answered 500 Internal Server Error")
        await eventually(lambda: there.left == 1)
    assert sent < 64 * 1024 * 1024, "more than the kernel's buffers hold"


async def test_an_endless_head_is_refused(sender: Sender) -> None:
    async def head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"x: " + b"y" * 10_000 + b"\r\n")
            await writer.drain()

    async with hook(head) as there:
        outcome = await post(sender, there.target())
        assert isinstance(outcome, Failed)
        assert "not HTTP" in outcome.reason
        await eventually(lambda: there.left == 1)


async def test_what_is_not_http_is_not_told(sender: Sender) -> None:
    async def banner(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2p1 hello\r\n\r\n")

    async def nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    for answer in (banner, nothing):
        async with hook(answer) as there:
            outcome = await post(sender, there.target())
            assert isinstance(outcome, Failed)
            assert outcome.reason.startswith("closed the connection without an answer")
            assert "SSH" not in outcome.reason
    assert await post(sender, there.target()) == Failed("could not be connected to")


def server_side(certificate: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return context


def self_signed() -> ssl.SSLContext:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with authority.cert_pem.tempfile() as certificate, authority.private_key_pem.tempfile() as key:
        context.load_cert_chain(certificate, key)
    return context


@pytest.mark.parametrize("tls", [self_signed(), server_side(trustme.CA().issue_cert("127.0.0.1"))])
async def test_a_certificate_nobody_vouches_for_is_refused(sender: Sender, tls: ssl.SSLContext) -> None:
    async with hook(reply("200 OK"), tls) as there:
        outcome = await post(sender, there.target())
    assert isinstance(outcome, Failed)
    assert outcome.reason.startswith("its certificate was refused: ")
    assert not there.requests


async def test_the_certificate_must_be_the_names_though_an_address_is_connected_to() -> None:
    authority = trustme.CA()
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    names = Names(hooks=[["127.0.0.1"]], other=[["127.0.0.1"]])
    async with (
        closing(Sender(allow_private=True, lookup=names, tls=trusting)) as sender,
        hook(
            reply("200 OK", "connection: close"), server_side(authority.issue_cert("hooks.example"))
        ) as there,
    ):
        assert await post(sender, there.target("hooks.example")) == Delivered()
        assert there.requests[0][1]["host"] == f"hooks.example:{there.port}"
        outcome = await post(sender, there.target("other.example"))
    assert isinstance(outcome, Failed)
    assert "certificate is not valid for 'other.example'" in outcome.reason
    assert len(there.requests) == 1


async def test_a_handshake_without_end_is_bounded(time_outs: TimeOuts) -> None:
    async with closing(Sender(allow_private=True)) as sender, hook(silence) as there:
        target = Target(f"https://127.0.0.1:{there.port}/", SECRET)
        assert await post_in_vain(sender, time_outs, target, lambda: there.connections) == NO_ANSWER
        await eventually(lambda: there.left == 1)


async def test_a_name_that_flips_leads_only_to_what_was_checked() -> None:
    names, internet = Names(hooks=[["8.8.8.8"], ["127.0.0.1"]]), Internet()
    async with (
        closing(Sender(lookup=names, network=internet)) as sender,
        hook(reply("200 OK", "connection: close")) as there,
    ):
        assert await post(sender, there.target("hooks.example")) == Delivered()
        assert (names.asked, internet.asked) == (["hooks.example"], ["8.8.8.8"])
        for _ in range(3):
            outcome = await post(sender, there.target("hooks.example"))
            assert outcome == Failed("its host leads to a private, local or reserved address")
        assert (internet.asked, len(there.requests)) == (["8.8.8.8"], 1)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/",
        "http://127.1:{port}/",
        "http://2130706433:{port}/",
        "http://0x7f.1:{port}/",
        "http://017700000001:{port}/",
        "http://0:{port}/",
        "http://localhost:{port}/",
        "http://[::ffff:127.0.0.1]:{port}/",
        "http://user@8.8.8.8:{port}/",
        "http://8.8.8.8:{port}/#x",
        "ftp://8.8.8.8:{port}/",
        "http://inside.example:{port}/",
        "http://both.example:{port}/",
    ],
)
async def test_what_leads_inside_is_refused_when_it_is_sent_too(url: str) -> None:
    names, internet = Names(inside=[["10.0.0.1"]], both=[["8.8.8.8", "127.0.0.1"]]), Internet()
    async with closing(Sender(lookup=names, network=internet)) as sender, hook(reply("200 OK")) as there:
        outcome = await post(sender, Target(url.format(port=there.port), SECRET))
    assert isinstance(outcome, Failed)
    assert not internet.asked
    assert there.connections == 0


async def test_the_next_address_is_tried() -> None:
    names = Names(hooks=[["127.0.0.2", "127.0.0.1"]])
    async with closing(Sender(allow_private=True, lookup=names)) as sender, hook(reply("200 OK")) as there:
        assert await post(sender, there.target("hooks.example")) == Delivered()
        await sender.close()


class Gate:
    """Answers once it is opened."""

    def __init__(self) -> None:
        self._open = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._open.wait()
        await reply("200 OK")(reader, writer)

    def open(self) -> None:
        self._open.set()


async def prove(sender: Sender, targets: Target | list[Target], there: Hook, then: Answer) -> None:
    """Have these hosts answer often enough to get all the places a host may have."""
    for target in [targets] if isinstance(targets, Target) else targets:
        for _ in range(2):
            assert await post(sender, target) == Delivered()
    await eventually(lambda: there.left == there.connections)
    there.answer, there.connections, there.left = then, 0, 0
    there.requests.clear()


async def test_ten_hosts_that_hang_hold_up_nobody_else() -> None:
    hanging = {f"h{number}": [["127.0.0.1"]] for number in range(10)}
    names = Names(**hanging, good=[["127.0.0.1"]], fresh=[["127.0.0.1"]])
    sender = Sender(allow_private=True, lookup=names)
    async with closing(sender), hook(silence) as nowhere, hook(OK) as there:
        held = [
            asyncio.create_task(post(sender, nowhere.target(f"{name}.example")))
            for name in hanging
            for _ in range(MAX_CONNECTIONS_A_HOST)
        ]
        await eventually(lambda: len(nowhere.requests) == len(hanging) * FIRST_PLACES)
        for name in ("good", "fresh", "good"):
            assert await post(sender, there.target(f"{name}.example")) == Delivered()
        await cancel(*held)
        assert await post(sender, there.target("good.example")) == Delivered()


async def post_to_the_crowded(sender: Sender, time_outs: TimeOuts, target: Target) -> Outcome:
    """Send when no place is free. The time of this one is over once it waits for a place."""
    running = len(time_outs.running)
    posting = asyncio.create_task(post(sender, target, LONG_S - 1))
    await eventually(lambda: len(time_outs.running) > running)
    time_outs.end(LONG_S - 1)
    return await posting


async def test_a_host_gets_its_share_and_the_rest_wait_or_are_crowded_out(time_outs: TimeOuts) -> None:
    gate, names = Gate(), Names(full=[["127.0.0.1"]], free=[["127.0.0.1"]])
    async with closing(Sender(allow_private=True, lookup=names)) as sender, hook(OK) as there:
        full = there.target("full.example")
        await prove(sender, full, there, gate)
        held = [asyncio.create_task(post(sender, full)) for _ in range(MAX_CONNECTIONS_A_HOST)]
        await eventually(lambda: len(there.requests) == MAX_CONNECTIONS_A_HOST)
        waiting = asyncio.create_task(post(sender, full))
        assert isinstance(await post_to_the_crowded(sender, time_outs, full), Crowded)
        async with hook(reply("200 OK", "connection: close")) as elsewhere:
            assert await post(sender, elsewhere.target("free.example")) == Delivered()
        assert there.connections == MAX_CONNECTIONS_A_HOST
        gate.open()
        assert set(await asyncio.gather(*held, waiting)) == {Delivered()}
        assert there.connections == MAX_CONNECTIONS_A_HOST
        await sender.close()


async def test_a_process_has_so_many_connections_whoever_they_lead_to(time_outs: TimeOuts) -> None:
    hosts = MAX_CONNECTIONS // MAX_CONNECTIONS_A_HOST + 1
    gate, names = Gate(), Names(**{f"h{number}": [["127.0.0.1"]] for number in range(hosts)})
    async with closing(Sender(allow_private=True, lookup=names)) as sender, hook(OK) as there:
        await prove(sender, [there.target(f"h{number}.example") for number in range(hosts)], there, gate)
        held = [
            asyncio.create_task(post(sender, there.target(f"h{number % hosts}.example")))
            for number in range(hosts * MAX_CONNECTIONS_A_HOST)
        ]
        await eventually(lambda: len(there.requests) == MAX_CONNECTIONS)
        crowded = await post_to_the_crowded(sender, time_outs, there.target("h0.example"))
        assert isinstance(crowded, Crowded)
        assert there.connections == MAX_CONNECTIONS
        gate.open()
        assert set(await asyncio.gather(*held)) == {Delivered()}
        await sender.close()


async def test_a_cancelled_delivery_leaves_nothing_behind(sender: Sender) -> None:
    async with hook(silence) as there:
        for _ in range(MAX_CONNECTIONS_A_HOST + 1):
            sending = asyncio.create_task(post(sender, there.target()))
            await eventually(lambda: len(there.requests) > there.left)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            await eventually(lambda: there.left == there.connections)
        there.answer = reply("200 OK", "connection: close")
        assert await post(sender, there.target()) == Delivered()


async def test_a_body_that_nobody_takes_is_bounded(sender: Sender, time_outs: TimeOuts) -> None:
    async def stare(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    sending = Sending()
    async with listening(stare) as port:
        target = Target(f"http://127.0.0.1:{port}/", SECRET)
        body = bytes(64 * 1024 * 1024)
        posting = asyncio.create_task(sender.send(target, 42, "orders", 1, body, LONG_S, sending))
        await eventually(lambda: sending.begun)
        await asyncio.sleep(0.1)  # It fills the buffers. If it takes longer, less was tried.
        assert not posting.done()
        time_outs.end(LONG_S)
        assert await in_time(posting) == NO_ANSWER


async def test_the_secret_is_told_to_nobody(sender: Sender, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    key = SECRET.removeprefix("whsec_")
    assert key not in repr(Target("https://a.example/", SECRET))
    bad = await sender.send(Target("http://127.0.0.1:9/", SECRET + "!"), 1, "orders", 1, BODY, LONG_S)
    assert isinstance(bad, Failed)
    assert key not in bad.reason
    async with hook(reply("500 No", "connection: close")) as there:
        failed = await post(sender, there.target())
        assert key not in repr(failed)
        assert key not in repr(there.requests)
    assert key not in caplog.text


def counted(outcome: str) -> float:
    return REGISTRY.get_sample_value("gapless_webhooks_total", {"outcome": outcome}) or 0.0


async def test_every_outcome_is_counted(sender: Sender) -> None:
    timed = REGISTRY.get_sample_value("gapless_webhook_seconds_count") or 0.0
    for status, name in [("200 OK", "delivered"), ("500 No", "failed"), ("410 Gone", "gone")]:
        before = counted(name)
        async with hook(reply(status, "connection: close")) as there:
            await post(sender, there.target())
        assert counted(name) == before + 1
    assert REGISTRY.get_sample_value("gapless_webhook_seconds_count") == timed + 3
