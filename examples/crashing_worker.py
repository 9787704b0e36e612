"""A worker that one message kills, again and again.

Twenty jobs are published. Number 7 ends the process that works on it, as a bug in a C library would. Workers
hold eight messages at a time and are started again whenever they die. In the end nineteen jobs are done, and
number 7 is a dead letter that tells how often it was tried. None of its neighbours is.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid

from gapless import AsyncClient, AsyncDelivery, Client

JOBS = 20
DEADLY = 7


async def work(queue: str) -> None:
    """One worker's life. It ends when nothing is left, or with the deadly job."""

    async def handle(delivery: AsyncDelivery) -> None:
        if delivery.message.data["job"] == DEADLY:
            os._exit(1)  # nothing is closed, nobody is told
        await client.publish(f"{queue}.done", delivery.message.data)

    async with AsyncClient() as client:
        working = asyncio.create_task(client.work(queue, handle, concurrency=8))
        while (left := await client.subscriptions.length(queue)).lag or left.in_flight:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


def main() -> None:
    queue = f"example-{uuid.uuid4().hex[:8]}"
    with Client() as client:
        client.subscriptions.create(queue, [f"{queue}.jobs"], ack_wait=5, max_deliver=3, backoff=[0.1])
        client.publish_many(f"{queue}.jobs", [{"job": number} for number in range(1, JOBS + 1)])
        lives = 1
        while subprocess.run([sys.executable, __file__, queue], check=False).returncode != 0:
            lives += 1
        done = {message.data["job"] for message in client.iter_history(f"{queue}.done")}
        print(f"{len(done)} jobs are done, by workers that lived {lives} lives")
        for letter in client.dead_letters.list(subscription=queue):
            job = letter.message.data["job"]
            print(f"job {job} is a dead letter: {letter.reason} after {letter.attempts} attempts,")
            print("of which 3 count: one that ends without a word beside other messages does not")
        client.subscriptions.delete(queue)


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1])) if sys.argv[1:] else main()
