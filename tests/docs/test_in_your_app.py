"""`examples/in_your_app/`: a shop of its own publishes in its transactions, reads, and has a live page."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest

from app import launch
from load.children import Child, free_port, wait_for_port
from load.install import debian
from tests.conftest import Database, Serve
from tests.patience import PATIENCE_S, wait_until
from tests.sse import subscribe
from tests.support import ROOT

EXAMPLE = ROOT / "examples" / "in_your_app"
TEXT = (EXAMPLE / "README.md").read_text()
PREFIX = "/events"
KETTLE = {"item": "a kettle", "cents": 2500}


@contextmanager
def shop(service: str, database: Database, keys: Path, folder: Path) -> Iterator[int]:
    """Where it listens: the command of the README, with other addresses."""
    (line,) = re.findall(r"\.venv/bin/(uvicorn .*) --port 8000$", TEXT, re.MULTILINE)
    port = free_port()
    command = [sys.executable, "-m", *line.split(), "--port", str(port)]
    environment = {
        "PYTHONPATH": str(ROOT / "client"),
        "GAPLESS_URL": service,
        "GAPLESS_JWT_KEYS": str(keys),
        "DATABASE_URL": database.owner_url.replace("postgresql://", "postgresql+asyncpg://", 1),
    }
    child = Child(command, folder / "shop.log", environment).start()
    try:
        wait_for_port(port, child)
        yield port
    finally:
        child.stop(PATIENCE_S)


def new_key(folder: Path) -> Path:
    """A file with a key, by the command of the README."""
    (line,) = re.findall(r"^\./gapless (token --new-key) shop.keys", TEXT, re.MULTILINE)
    file = folder / "shop.keys"
    subprocess.run([*launch.command("app.cli"), *line.split(), str(file)], check=True, timeout=PATIENCE_S)
    return file


def order(url: str) -> None:
    """Order two things, of which one is refused by the command of the README."""
    (refused,) = re.findall(r"curl http://127.0.0.1:8088/orders --json '(.*)'", TEXT)
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        answer = client.post("orders", json=json.loads(refused))
        assert (answer.status_code, answer.json()) == (402, {"detail": "the card was refused"})
        assert client.post("orders", json=KETTLE).status_code == 201
        wait_until(lambda: client.get("sold").json() == {"a kettle": 1})


async def read_one(shop_url: str, url: str) -> None:
    """Whoever is logged in gets a token of the shop, and with it what the page asks for. The stream begins
    with the order that was not refused."""
    with httpx.Client(timeout=PATIENCE_S) as client:
        assert client.get(shop_url + "token").status_code == 401
        assert client.post(shop_url + "login", json={"name": "ann"}).status_code == 204
        token = client.get(shop_url + "token").json()["token"]
        asked = {"channels": ["shop.orders"]}
        assert client.post(f"{url}/v1/tickets", json=asked).status_code == 401
        bearer = {"authorization": f"Bearer {token}"}
        ticket = client.post(f"{url}/v1/tickets", json=asked, headers=bearer).json()["ticket"]
    async with subscribe(url, "shop.orders", from_="earliest", ticket=ticket) as stream:
        (message,) = await stream.messages(1)
    assert (message["seq"], message["type"], message["data"]["item"]) == (1, "order.placed", "a kettle")


async def test_it_publishes_what_it_commits_and_follows_it(
    serve: Serve, database: Database, tmp_path: Path
) -> None:
    keys = new_key(tmp_path)
    service = serve(GAPLESS_ROOT_PATH=PREFIX, GAPLESS_JWT_KEYS=str(keys)).url
    with shop(service, database, keys, tmp_path) as port:
        order(f"http://127.0.0.1:{port}/")
        await read_one(f"http://127.0.0.1:{port}/", service)


class Links(HTMLParser):
    """The links of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if name in ("href", "src") and value]


@contextmanager
def nginx(shop_port: int, service_port: int, folder: Path) -> Iterator[str]:
    """The example's file for nginx, with other addresses."""
    debian("nginx-light")
    port, text = free_port(), (EXAMPLE / "nginx.conf").read_text()
    for found, instead in (
        ("127.0.0.1:8088", f"127.0.0.1:{port}"),
        ("127.0.0.1:8000", f"127.0.0.1:{shop_port}"),
        ("127.0.0.1:8080", f"127.0.0.1:{service_port}"),
        ("/tmp/gapless-shop.pid", f"{folder}/pid"),
    ):
        assert text.count(found) == 1, found
        text = text.replace(found, instead)
    (folder / "nginx.conf").write_text(text)
    child = Child(["nginx", "-p", str(folder), "-c", "nginx.conf"], folder / "nginx.log").start()
    try:
        wait_for_port(port, child)
        yield f"http://127.0.0.1:{port}/"
    finally:
        child.stop(PATIENCE_S)


@pytest.mark.drill
async def test_one_nginx_serves_both(serve: Serve, database: Database, tmp_path: Path) -> None:
    keys = new_key(tmp_path)
    pages = {"GAPLESS_DOCUMENTS": "open", "GAPLESS_METRICS": "open"}
    service = serve(GAPLESS_ROOT_PATH=PREFIX, GAPLESS_JWT_KEYS=str(keys), **pages)
    service_port = int(service.url.rpartition(":")[2])
    with shop(service.url, database, keys, tmp_path) as port, nginx(port, service_port, tmp_path) as url:
        order(url)
        (source,) = re.findall(r'EventSource\("([^"?]*)', httpx.get(url, timeout=PATIENCE_S).text)
        assert source == "events/v1/subscribe", "what follows is read where the page reads it"
        await read_one(url, url + "events")
        with httpx.Client(timeout=PATIENCE_S) as client:
            seen, wanted = set(), [urljoin(url, "events/")]
            while wanted:
                page = wanted.pop()
                answer = client.get(page)
                assert answer.status_code == 200, page
                seen.add(page)
                if answer.headers["content-type"].startswith("text/html"):
                    links = [urljoin(page, link) for link in Links(answer.text).found]
                    wanted += [link for link in links if link not in seen]
            assert all(page.startswith(urljoin(url, "events/")) for page in seen), seen
            assert {
                urljoin(url, f"events/{name}") for name in ("docs", "docs/browser", "asyncapi.json")
            } < seen
            document = client.get(urljoin(url, "events/openapi.json")).json()
            assert document["servers"] == [{"url": PREFIX}]
            for method, path in (
                ("POST", "v1/channels/shop.orders/messages"),
                ("GET", "v1/subscriptions/q/consume"),
                ("GET", "v1/ws"),
            ):
                assert client.request(method, urljoin(url, f"events/{path}")).status_code == 403, path
