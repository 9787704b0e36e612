"""The secrets of receipts and hints are rotated below a running service."""

from __future__ import annotations

import asyncio
from functools import partial

import asyncpg

from app.message.receipts import ReceiptCodec
from tests.conftest import Database, Serve
from tests.integration.queueing import Host, Queue
from tests.patience import eventually
from tests.race.test_signing import now, pass_by
from tests.sse import Stream, subscribe


async def test_receipts_of_before_are_good_until_their_secret_ends(
    serve: Serve, database: Database, owner: asyncpg.Connection
) -> None:
    async with Host(serve().url) as a, Host(serve().url) as b:
        await a.publish("jobs", 1, 2, 3)
        queue = await a.subscribe("jobs")
        first, second = await queue.pull(2)
        old = ReceiptCodec(*(await now(database)).receipts)
        receipt = old.decode(second["receipt"])
        assert receipt is not None
        elsewhere = receipt._replace(lease=receipt.lease + 1)
        await owner.execute("select gapless.rotate_secret('receipts', '1 hour')")
        new = ReceiptCodec((await now(database)).receipts[1])
        for host in (a, b):
            # No lease is like this one, so the answer tells only whether the signature is accepted.
            await becomes(host, new.encode(elsewhere), "lease_expired")
        await pass_by(owner, 10)
        for host in (a, b):
            await eventually(partial(signs_with, new, queue.at(host)))
        assert await status(b, first["receipt"]) == "acked"
        await pass_by(owner, 3600)
        for host in (a, b):
            await becomes(host, old.encode(elsewhere), "unknown")
        assert await status(b, second["receipt"]) == "unknown"
        (third,) = await queue.at(b).pull()
        assert await status(a, third["receipt"]) == "acked"


async def status(host: Host, receipt: str) -> str:
    """What an ack of it says."""
    answer = await host.ask("POST", "/v1/ack", json={"receipts": [receipt]})
    said: str = answer["results"][0]["status"]
    return said


async def becomes(host: Host, receipt: str, wanted: str) -> None:
    async def is_so() -> bool:
        return await status(host, receipt) == wanted

    await eventually(is_so)


async def signs_with(codec: ReceiptCodec, queue: Queue) -> bool:
    """Whether what the host hands out now is signed so."""
    (delivery,) = await queue.pull()
    await queue.host.ask("POST", f"{queue.path}/release", json={"receipts": [delivery["receipt"]]})
    return codec.decode(delivery["receipt"]) is not None


async def test_hints_arrive_while_their_secret_changes(serve: Serve, owner: asyncpg.Connection) -> None:
    """An ephemeral message is only in a hint, so each that arrives was signed and accepted."""
    a, b = serve().url, serve().url
    async with Host(a) as sender, subscribe(b, "room") as stream:
        await stream.until("ready")
        for seconds in (0, 10, 3600, 20):
            if not seconds:
                await owner.execute("select gapless.rotate_secret('hints', '1 hour')")
            await pass_by(owner, seconds)
            await arrives(sender, stream, f"after {seconds} s")


async def arrives(sender: Host, stream: Stream, text: str) -> None:
    """It is sent again until the reader has it: both processes look for secrets once a second."""

    async def send() -> None:
        while True:
            body = {"data": text, "ephemeral": True}
            await sender.ask("POST", "/v1/channels/room/messages", 202, json=body)
            await asyncio.sleep(0.05)

    sending = asyncio.create_task(send())
    try:
        while (await stream.until("ephemeral"))[-1].json["data"] != text:
            pass
    finally:
        sending.cancel()
