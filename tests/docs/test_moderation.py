"""The worker of docs/howto/moderation.md, with the key that the page makes for it."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys

import httpx
import pytest
from gapless import AsyncClient, Forbidden, Original

from tests.conftest import Serve
from tests.docs.pages import fences, read
from tests.docs.test_example_programs import environment
from tests.patience import PATIENCE_S

PAGE = "docs/howto/moderation.md"
QUEUE, ROOM = "moderation", "chat.lobby"
JUDGE = "judge(client, delivery)\n"
CRASH = "judge(client, delivery); __import__('os')._exit(9)\n"
"""It ends before its ack, and nothing is closed."""
USER = [{"actions": ["publish", "subscribe"], "channels": [">"]}]
ALL = ["publish", "subscribe", "moderate", "consume", "manage", "admin"]
OPS = [{"actions": ALL, "channels": [">"], "subscriptions": [">"]}]


def new_key(url: str, name: str, grants: object, token: str | None = None) -> str:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    body = {"name": name, "grants": grants}
    answer = httpx.post(f"{url}/v1/keys", json=body, headers=headers, timeout=PATIENCE_S)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["key"])


async def test_its_key_is_enough_and_a_crash_before_the_ack_changes_nothing(serve: Serve) -> None:
    url = serve().url
    grants = [
        {"actions": actions.split(","), "subscriptions" if name == QUEUE else "channels": [name]}
        for actions, name in re.findall(r"--grant '([\w,]+):([^']+)'", read(PAGE))
    ]
    root = new_key(url, "ops", OPS)
    moderator, ann = new_key(url, "moderator", grants, root), new_key(url, "ann", USER, root)
    (worker,) = [one.text for one in fences(PAGE) if "def judge" in one.text]
    crashing = worker.replace(f"            {JUDGE}", f"            {CRASH}")
    async with AsyncClient(url, token=root) as ops, AsyncClient(url, token=ann) as client:
        await ops.subscriptions.create(QUEUE, ["chat.>"], start="earliest")
        said = [await client.publish(ROOM, {"text": text}, key="ann") for text in ("spam", "hello", "bye")]
        await client.publish(ROOM, {"text": "spam"}, key="ann", target=said[2].id, action="update")
        for text, code in ((crashing, 9), (worker, 0)):
            done = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-c", text],
                env=environment(url, GAPLESS_TOKEN=moderator),
                timeout=PATIENCE_S,
            )
            assert done.returncode == code
        pages = [page async for page in client.history(ROOM, view="latest")]
        shown = [one for page in pages for one in page if isinstance(one, Original)]
        assert [one.deleted for one in shown] == [True, False, True]
        changes = [(one.sender, one.target) async for one in client.iter_history(ROOM, changes="only")]
        first, last = ("moderator", said[0].id), ("moderator", said[2].id)
        assert changes == [("ann", said[2].id), first, first, last]
    async with AsyncClient(url, token=moderator) as judge:
        with pytest.raises(Forbidden):
            await judge.get_message(ROOM, said[0].id)
