"""The worker of docs/howto/moderation.md, with the key that the page makes for it."""

from __future__ import annotations

import re
import subprocess
import sys

import httpx
import pytest
from gapless import AsyncClient, Forbidden

from tests.conftest import Serve
from tests.docs.pages import fences, read
from tests.docs.test_example_programs import environment
from tests.patience import PATIENCE_S

PAGE = "docs/howto/moderation.md"
QUEUE, ROOM = "moderation", "chat.lobby"
CRASH = "judge(client, delivery); __import__('os')._exit(9)"


async def test_it_needs_no_more_than_its_grants_and_a_crash_before_the_ack_changes_nothing(
    serve: Serve,
) -> None:
    url = serve().url
    granted = re.findall(r"--grant '([\w,]+):([^']+)'", read(PAGE))
    grants = [
        {"actions": actions.split(","), "subscriptions" if name == QUEUE else "channels": [name]}
        for actions, name in granted
    ]
    everything = [
        {"actions": ["publish", "subscribe", "manage", "admin"], "channels": [">"], "subscriptions": [">"]}
    ]

    def key(name: str, given: object, token: str | None = None) -> str:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        body = {"name": name, "grants": given}
        answer = httpx.post(f"{url}/v1/keys", json=body, headers=headers, timeout=PATIENCE_S)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["key"])

    root = key("ops", None)
    moderator, ann = key("moderator", grants, root), key("ann", everything[:1], root)
    (worker,) = [one.text for one in fences(PAGE) if "def judge" in one.text]
    async with AsyncClient(url, token=root) as ops, AsyncClient(url, token=ann) as client:
        await ops.subscriptions.create(QUEUE, ["chat.>"], start="earliest", ack_wait=1)
        said = [await client.publish(ROOM, {"text": text}, key="ann") for text in ("hello", "spam", "bye")]
        await client.publish(ROOM, {"text": "spam"}, key="ann", target=said[2].id, action="update")
        for text, code in ((worker.replace("judge(client, delivery)\n", CRASH + "\n"), 9), (worker, 0)):
            assert text != worker or code == 0
            command = [sys.executable, "-c", text]
            done = subprocess.run(
                command, env=environment(url, GAPLESS_TOKEN=moderator), timeout=PATIENCE_S, check=False
            )
            assert done.returncode == code
        pages = [page async for page in client.history(ROOM, view="latest")]
        assert [one.deleted for page in pages for one in page] == [False, True, True]
        deletions = [one async for one in client.iter_history(ROOM, changes="only")][1:]
        assert {(one.sender, one.target) for one in deletions} == {("moderator", one.id) for one in said[1:]}
    async with AsyncClient(url, token=moderator) as judge:
        with pytest.raises(Forbidden):
            await judge.get_message(ROOM, said[0].id)
