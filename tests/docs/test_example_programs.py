"""The programs of `examples/` do what they say."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from load import install
from load.browser.chromium import opened
from load.children import Child, free_port
from load.relay import Streams, forward, listening, until_first_ends
from tests.conftest import Database, Serve
from tests.patience import PATIENCE_S, eventually, http_client
from tests.support import ROOT

EXAMPLES = ROOT / "examples"
ALL = [{"actions": ["publish", "subscribe", "admin"], "channels": [">"]}]


def environment(url: str, **more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "client"), "GAPLESS_URL": url, **more}


def run(program: str, url: str, **more: str) -> str:
    """What it printed."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / program],
        env=environment(url, **more),
        capture_output=True,
        text=True,
        timeout=5 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.drill
def test_a_job_that_kills_its_worker_becomes_a_dead_letter_and_the_others_are_done(server_url: str) -> None:
    done, dead, why = run("crashing_worker.py", server_url).splitlines()
    assert done.startswith("19 jobs are done, by workers that lived ")
    assert dead.startswith("job 7 is a dead letter: max_deliver after ")
    assert why.startswith("of which 3 count: "), "there may be more attempts than max_deliver"


async def test_an_order_and_its_event_are_both_there_or_neither(serve: Serve, database: Database) -> None:
    url = serve().url
    engine = database.owner_url.replace("postgresql://", "postgresql+asyncpg://", 1)
    told = await asyncio.to_thread(run, "outbox.py", url, DATABASE_URL=engine)
    assert told.splitlines() == [
        "the teapot is not ordered: the card was refused",
        "orders: a kettle",
        "events: a kettle",
    ]


REPORT = """<script>
  const report = () => fetch("/report", { method: "POST", body: document.body.innerText });
  const watched = { subtree: true, childList: true, characterData: true };
  new MutationObserver(report).observe(document.body, watched);
</script>"""


@asynccontextmanager
async def shown(
    page: str, folder: Path, port: int, ask: Callable[[str], Awaitable[httpx.Response]] | None = None
) -> AsyncIterator[asyncio.Queue[str]]:
    """What this page shows in a browser, each time that it changes. It comes from this port; what it posts
    elsewhere on it, `ask` answers."""
    texts: asyncio.Queue[str] = asyncio.Queue()

    async def serve_page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = re.search(r"(?i)content-length: (\d+)", head)
        sent = await reader.readexactly(int(length[1]) if length else 0)
        body = (page + REPORT).encode() if head.startswith("GET / ") else b""
        if head.startswith("POST /report"):
            texts.put_nowait(sent.decode())
        elif head.startswith("POST ") and ask is not None:
            body = (await ask(head.split()[1])).content
        start = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\n"
        writer.write(start.encode() + b"Connection: close\r\n\r\n" + body)
        await writer.drain()

    async with listening(serve_page, port), opened(url_of(port), folder):
        yield texts


def url_of(port: int) -> str:
    return f"http://127.0.0.1:{port}"


@pytest.mark.drill
async def test_what_is_said_in_the_chat_is_read_in_its_page_through_cuts(
    serve: Serve, tmp_path: Path
) -> None:
    """Each message is there once, in order, though the page's stream is cut after each of ten."""
    port, page_port = free_port(), free_port()
    service = serve(GAPLESS_ALLOWED_ORIGINS=url_of(page_port))
    root = httpx.post(f"{service.url}/v1/keys", json={"name": "root", "grants": ALL}, timeout=PATIENCE_S)
    async with Streams() as proxy, http_client(url_of(port)) as client:

        async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            behind = httpx.URL(service.url)
            there, back = await proxy.connect(behind.host, behind.port or 0)
            await until_first_ends(forward(reader, back), forward(there, writer))

        between = url_of(await proxy.listen(pass_on))
        command = [sys.executable, str(EXAMPLES / "chat" / "chat.py"), "--port", str(port)]
        more = {"GAPLESS_TOKEN": root.json()["key"]}
        chat = Child(command, tmp_path / "chat.log", environment(between, **more)).start()
        try:
            await eventually(lambda: _answers(url_of(port)))
            said = {"text": "<b>hello</b>", "page": "p", "number": 0}
            for path in ("/say", "/ticket"):
                assert (await client.post(path, json=said)).status_code == 401
            assert (await client.post("/login", json={"name": "Ada"})).status_code == 204
            answers = [(await client.post("/say", json=said)).json() for _ in range(2)]
            assert answers == [{"seq": 1}, {"seq": 1}], "a repeated request is one message"
            assert (await client.post("/say", json={**said, "text": ""})).status_code == 422
            if shutil.which("chromium") is None:
                pytest.skip("there is no Chromium")
            page = (await client.get("/")).text
            async with (
                shown(page, tmp_path, page_port, client.post) as texts,
                asyncio.timeout(5 * PATIENCE_S),
            ):
                lines = ["Ada: <b>hello</b>"]
                for number in range(1, 11):
                    while lines[-1] not in (text := await texts.get()):
                        pass
                    await proxy.drop()
                    lines.append(f"Ada: no. {number}")
                    body = {**said, "text": f"no. {number}", "number": number}
                    assert (await client.post("/say", json=body)).json() == {"seq": number + 1}
                while lines[-1] not in (text := await texts.get()):
                    pass
                assert [line for line in text.splitlines() if line.startswith("Ada: ")] == lines
        finally:
            await asyncio.to_thread(chat.stop, 5.0)


@pytest.mark.drill
async def test_two_ways_to_read_show_the_same(serve: Serve, tmp_path: Path) -> None:
    if shutil.which("chromium") is None or shutil.which("npm") is None:
        pytest.skip("there is no Chromium, or no npm")
    modules = await asyncio.to_thread(install.npm, "clients", ["centrifuge"])
    script = (modules / "node_modules" / "centrifuge" / "dist" / "centrifuge.js").read_text()
    port, page_port = free_port(), free_port()
    service = serve(GAPLESS_ALLOWED_ORIGINS=url_of(page_port))
    command = [sys.executable, str(EXAMPLES / "chat" / "chat.py"), "--port", str(port)]
    more = {"NODE_MODULES": str(modules / "node_modules")}
    chat = Child(command, tmp_path / "chat.log", environment(service.url, **more)).start()
    try:
        await eventually(lambda: _answers(url_of(port)))
        async with http_client(url_of(port)) as client:
            await client.post("/login", json={"name": "Ada"})
            await client.post("/say", json={"text": "one", "page": "p", "number": 1})
            assert (await client.get("/centrifuge.js")).text == script
            page = (await client.get("/side-by-side")).text
            # The page's own server has no second file.
            page = page.replace('<script src="/centrifuge.js"></script>', f"<script>{script}</script>")
            saying = 'lobby.on("subscribed", () => lobby.publish({ name: "Eve", text: "two" }));'
            page = page.replace("lobby.subscribe();", f"{saying} lobby.subscribe();")
            async with shown(page, tmp_path, page_port) as texts, asyncio.timeout(PATIENCE_S):
                wanted = [f"{side} {said}" for side in ("sse", "ws") for said in ("1 Ada: one", "2 Eve: two")]
                seen = ""
                while not all(line in seen for line in wanted):
                    seen = await texts.get()
                assert [seen.count(line) for line in wanted] == [1, 1, 1, 1]
    finally:
        await asyncio.to_thread(chat.stop, 5.0)


def _answers(origin: str) -> bool:
    try:
        return httpx.get(origin, timeout=PATIENCE_S).status_code == 200
    except httpx.TransportError:
        return False
