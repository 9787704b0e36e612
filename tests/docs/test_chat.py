"""The chat of `examples/chat/`: its program, its page in a browser, and the same in a terminal."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from operator import eq
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from gapless import AsyncClient, Client, Forbidden, Original

from app import launch
from load import install
from load.browser.chromium import opened
from load.children import Child, free_port
from load.relay import Streams, forward, listening, until_first_ends
from tests.conftest import Serve
from tests.docs.pages import fences
from tests.docs.test_example_programs import EXAMPLES, environment
from tests.patience import PATIENCE_S, eventually, http_client, next_line, wait_until

CHAT = EXAMPLES / "chat"
HOW_TO = "docs/howto/editable-chat.md"
LOBBY, KITCHEN = "example.chat.lobby", "example.chat.kitchen"
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


@dataclass(slots=True)
class Chat:
    """A running chat. Its page talks to the service through the proxy, and may come from `page_port`."""

    url: str
    service_url: str
    page_port: int
    proxy: Streams

    @asynccontextmanager
    async def somebody(self, name: str) -> AsyncIterator[tuple[httpx.AsyncClient, AsyncClient]]:
        """Who is logged in: a client of the chat, and one of the service with the token of the chat."""
        async with http_client(self.url) as browser:
            assert (await browser.post("/token")).status_code == 401
            assert (await browser.post("/login", json={"name": name})).status_code == 204
            token = (await browser.post("/token")).json()["token"]
            async with AsyncClient(self.service_url, token=token) as client:
                yield browser, client


@asynccontextmanager
async def chatting(serve: Serve, folder: Path, *, tokens: bool = True, **more: str) -> AsyncIterator[Chat]:
    """The chat and its service; with `tokens` nobody may do anything without one."""
    port, page_port = free_port(), free_port()
    if tokens:
        keys = folder / "chat.keys"
        make = [*launch.command("app.cli"), "token", "--new-key", str(keys)]
        await asyncio.to_thread(subprocess.run, make, check=True, timeout=PATIENCE_S)
        more["GAPLESS_JWT_KEYS"] = str(keys)
    service = serve(GAPLESS_ALLOWED_ORIGINS=url_of(page_port), **more)
    async with Streams() as proxy:

        async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            behind = httpx.URL(service.url)
            there, back = await proxy.connect(behind.host, behind.port or 0)
            await until_first_ends(forward(reader, back), forward(there, writer))

        between = url_of(await proxy.listen(pass_on))
        command = [sys.executable, str(CHAT / "chat.py"), "--port", str(port)]
        child = Child(command, folder / "chat.log", environment(between, **more)).start()
        try:
            await eventually(lambda: _answers(url_of(port)))
            yield Chat(url_of(port), service.url, page_port, proxy)
        finally:
            await asyncio.to_thread(child.stop, 5.0)


def _answers(origin: str) -> bool:
    try:
        return httpx.get(origin, timeout=PATIENCE_S).status_code == 200
    except httpx.TransportError:
        return False


async def test_each_changes_their_own_and_the_moderator_deletes_what_is_forbidden(
    serve: Serve, tmp_path: Path
) -> None:
    """An edit that brings the forbidden word in is judged too. What is deleted is not unread."""
    async with (
        chatting(serve, tmp_path) as chat,
        chat.somebody("Ada") as (_, ada),
        chat.somebody("Eve") as (_, eve),
    ):
        first = await ada.publish(LOBBY, {"text": "hello"}, key="Ada")
        second = await ada.publish(LOBBY, {"text": "buy spam"}, key="Ada")
        third = await eve.publish(LOBBY, {"text": "me too"}, target=first.id, action="reply")
        with pytest.raises(Forbidden):
            await eve.publish(LOBBY, {"text": "mine"}, target=first.id, action="update")
        await eve.publish(LOBBY, {"text": "SPAM, too"}, target=third.id, action="update")
        async with eve.conversation(LOBBY) as seen, asyncio.timeout(PATIENCE_S):
            while not all(one.deleted for one in seen.messages[1:]):
                await anext(seen)
            await ada.publish(LOBBY, {"text": "hello, all"}, target=first.id, action="update")
            while seen.messages[0].data != {"text": "hello, all"}:
                await anext(seen)
            assert [one.deleted for one in seen.messages] == [False, True, True]
            changes = [one async for one in eve.iter_history(LOBBY, changes="only")]
        assert {(one.target, one.sender) for one in changes if one.action == "delete"} == {
            (second.id, "moderator"),
            (third.id, "moderator"),
        }
        unread = {room.channel: room.unread async for room in eve.markers.unread(user="Eve")}
        assert unread == {LOBBY: 1, KITCHEN: 0}


def line(message: Original, others: dict[int, Original]) -> str:
    """What the page shows of a message, but for its buttons."""

    def text(one: Original) -> str:
        return "(deleted)" if one.deleted else str(one.data["text"])

    to = f" to “{text(others[message.target])}”" if message.target in others else ""
    edited = " (edited)" if not message.deleted and message.data.get("edited") else ""
    replies = f" [replies: {message.replies}]" if message.replies else ""
    likes = message.annotations.get("👍", {}).get("distinct")
    return f"{message.sender}{to}: {text(message)}{edited}{replies}{f'👍 {likes}' if likes else ''}"


class Terminal:
    """`terminal.py`, as somebody uses it."""

    def __init__(self, url: str, name: str, room: str) -> None:
        self._program = subprocess.Popen(
            [sys.executable, str(CHAT / "terminal.py"), name, room],
            env=environment(url),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def write(self, line: str) -> None:
        assert self._program.stdin is not None
        self._program.stdin.write(line + "\n")
        self._program.stdin.flush()

    def read(self, lines: int) -> list[str]:
        """The next lines that it prints."""
        return [next_line(self._program, self._program.stdout).strip() for _ in range(lines)]

    def end(self) -> None:
        """End of input."""
        self._program.communicate(timeout=PATIENCE_S)
        assert self._program.returncode == 0


def test_two_terminals_show_the_same(server_url: str) -> None:
    """What one says, edits, likes and deletes the other shows as it is then. Who comes later is told what is
    unread, and sees it as it has become."""
    room = f"terminal.{uuid4().hex}"
    ann, bob = Terminal(server_url, "Ann", room), Terminal(server_url, "Bob", room)
    ann.write("hello")
    (said,) = bob.read(1)
    assert ann.read(1) == [said]
    number, _, text = said.partition(" ")
    assert text == "Ann: hello"
    for command, shown_as in (
        (f"/edit {number} hello, all", "Ann: hello, all (edited)"),
        (f"/like {number}", "Ann: hello, all (edited) [👍 1]"),
        (f"/unlike {number}", "Ann: hello, all (edited)"),
    ):
        ann.write(command)
        assert bob.read(1) == ann.read(1) == [f"{number} {shown_as}"]
    bob.write(f"/reply {number} hello, you")
    answered = bob.read(2)
    assert ann.read(2) == answered
    assert answered[1] == f"{number} Ann: hello, all (edited) [1 replies]"
    assert answered[0].endswith(f" Bob: hello, you [to {number}]")
    with Client(server_url) as client:
        reply = int(answered[0].partition(" ")[0])
        wait_until(lambda: {one.user for one in client.markers.of(room) if one.id == reply} == {"Ann", "Bob"})
    bob.end()
    ann.write(f"/delete {number}")
    assert ann.read(1) == [f"{number} Ann: (deleted) [1 replies]"]
    ann.write("/delete 0")
    assert ann.read(1)[0].startswith("not done: ")
    ann.write("are you there?")
    (last,) = ann.read(1)
    bob = Terminal(server_url, "Bob", room)
    assert bob.read(4) == [f"1 unread in {room}", f"{number} Ann: (deleted) [1 replies]", answered[0], last]
    bob.end()
    ann.end()


BUTTONS = re.compile(r"(👍reply(editdelete)?)?( read by (?P<readers>.*))?$")
HAND = """<script>
  const until = async (look) => {
    for (let found; ; await new Promise((go) => setTimeout(go, 20))) if ((found = look())) return found;
  };
  const all = (where, what) => [...(where?.querySelectorAll(what) ?? [])];
  const line_of = (text) => all(document, "li").find((item) => item.textContent.startsWith(text));
  const press = async (text, label) =>
    (await until(() => all(line_of(text), "button").find((one) => one.textContent === label))).click();
  const write = (text) => { $("text").value = text; $("say").requestSubmit(); };
  (async () => {
    await press("Eve: <b>no. 0</b>", "👍");
    await press("Eve: <b>no. 0</b>", "reply");
    write("yes");
    await until(() => line_of("Ada to “<b>no. 0</b>”: yes"));
    write("mine");
    await press("Ada: mine", "edit");
    write("mine, better");
    await press("Ada: mine, better (edited)", "👍");
    await press("Ada: mine, better (edited)", "👍 1");
    await press("Ada: mine, better (edited)👍reply", "delete");
  })();
</script>"""
"""Somebody who uses the page."""


@pytest.mark.drill
async def test_the_page_shows_what_became_of_each_message_through_cuts(serve: Serve, tmp_path: Path) -> None:
    """What is said, edited, deleted and liked while its stream is cut is there once. What Ada does on the
    page is stored as hers, and what she sees is read."""
    if shutil.which("chromium") is None:
        pytest.skip("there is no Chromium")
    async with (
        chatting(serve, tmp_path) as chat,
        chat.somebody("Ada") as (browser, ada),
        chat.somebody("Eve") as (_, eve),
    ):
        await eve.publish(LOBBY, {"text": "<b>no. 0</b>"}, key="Eve")
        page = (await browser.get("/")).text.replace(chat.url, "") + HAND
        async with (
            shown(page, tmp_path, chat.page_port, browser.post) as texts,
            eve.conversation(LOBBY) as seen,
            asyncio.timeout(5 * PATIENCE_S),
        ):
            while len(seen.messages) < 3 or not seen.messages[2].deleted:
                await anext(seen)
            assert [one.sender for one in seen.messages] == ["Eve", "Ada", "Ada"]
            for number in range(1, 11):
                said = await eve.publish(LOBBY, {"text": f"no. {number}"}, key="Eve")
                await _until(texts, partial(contains, f"Eve: no. {number}"))
                await chat.proxy.drop()
                again = {"text": f"no. {number}, again", "edited": True}
                await eve.publish(LOBBY, again, target=said.id, action="update")
                for one in (ada, eve):
                    await one.publish(
                        LOBBY, None, target=said.id, action="annotate", annotation="👍", mode="distinct"
                    )
                await ada.publish(LOBBY, {"text": "so?"}, target=said.id, action="reply")
                if number % 3 == 0:
                    await eve.publish(LOBBY, None, target=said.id, action="delete")
            last = await eve.publish(KITCHEN, {"text": "tea"})
            await eve.markers.move(LOBBY, last.id)
            pages = [page async for page in eve.history(LOBBY, view="latest")]
            latest = {one.id: one for page in pages for one in page if isinstance(one, Original)}
            expected = [line(one, latest) for one in latest.values()]
            await _until(texts, partial(eq, expected))
            text = ""
            while not all(told in text for told in ("read by Eve", "lobby (0)", "kitchen (1)")):
                text = await texts.get()
            readers = {marker.user: marker.id async for marker in eve.markers.of(LOBBY)}
            assert readers == {"Ada": last.id - 1, "Eve": last.id - 1}


def contains(said: str, lines: list[str]) -> bool:
    return said in lines


async def _until(texts: asyncio.Queue[str], good: Callable[[list[str]], bool]) -> None:
    """Wait for a text whose lines of the chat, without buttons, are good."""
    said: list[str] | None = None
    while said is None or not good(said):
        text = await texts.get()
        said = [BUTTONS.sub("", one) for one in text.splitlines() if re.match(r"(Ada|Eve)\b.*: ", one)]


@pytest.mark.drill
async def test_two_ways_to_read_show_the_same(serve: Serve, tmp_path: Path) -> None:
    if shutil.which("chromium") is None or shutil.which("npm") is None:
        pytest.skip("there is no Chromium, or no npm")
    modules = await asyncio.to_thread(install.npm, "clients", ["centrifuge"])
    script = (modules / "node_modules" / "centrifuge" / "dist" / "centrifuge.js").read_text()
    more = {"NODE_MODULES": str(modules / "node_modules")}
    async with (
        chatting(serve, tmp_path, tokens=False, **more) as chat,
        chat.somebody("Ada") as (browser, ada),
    ):
        await ada.publish(LOBBY, {"name": "Ada", "text": "one"})
        assert (await browser.get("/centrifuge.js")).text == script
        page = (await browser.get("/side-by-side")).text
        # The page's own server has no second file.
        page = page.replace('<script src="/centrifuge.js"></script>', f"<script>{script}</script>")
        saying = 'lobby.on("subscribed", () => lobby.publish({ name: "Eve", text: "two" }));'
        page = page.replace("lobby.subscribe();", f"{saying} lobby.subscribe();")
        async with shown(page, tmp_path, chat.page_port) as texts, asyncio.timeout(PATIENCE_S):
            wanted = [f"{side} {said}" for side in ("sse", "ws") for said in ("1 Ada: one", "2 Eve: two")]
            seen = ""
            while not all(line in seen for line in wanted):
                seen = await texts.get()
            assert [seen.count(line) for line in wanted] == [1, 1, 1, 1]


def test_the_page_on_it_shows_all_lines_of_the_program_and_of_the_script() -> None:
    shown = fences(HOW_TO)
    (script,) = re.findall(r"<script>\n(.*?)</script>", (CHAT / "page.html").read_text(), re.DOTALL)
    lines = [line for line in textwrap.dedent(script).splitlines() if line]
    assert [line for one in shown if one.language == "js" for line in one.text.splitlines() if line] == lines
    (program,) = [one.text for one in shown if one.language == "python"]
    assert program == (CHAT / "terminal.py").read_text()
    assert len(script.splitlines()) <= 100
    assert len(program.splitlines()) <= 100
    assert not re.search(r"innerHTML|document\.write", script)
