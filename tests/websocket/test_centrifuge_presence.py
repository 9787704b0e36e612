"""The JavaScript client of Centrifugo is told who is on a channel, by each of its three transports.

Its own tests ask the same, but they are not in its package. The first run installs it, and fails where it
cannot.
"""

from __future__ import annotations

import json
import subprocess
import uuid
from pathlib import Path

import pytest

from load import install
from tests.patience import PATIENCE_S

PROGRAM = Path(__file__).with_name("centrifuge_presence.mjs")
TRANSPORTS = {
    "websocket": "ws://{}/v1/ws",
    "http_stream": "http://{}/v1/ws/http_stream",
    "sse": "http://{}/v1/ws/sse",
}


@pytest.fixture(scope="module")
def modules() -> Path:
    """A folder with the client."""
    return install.npm("centrifuge-presence", ["centrifuge", "ws", "eventsource"])


@pytest.mark.drill
@pytest.mark.parametrize("transport", list(TRANSPORTS))
@pytest.mark.parametrize(
    ("what", "seen"), [("together", [[2, 2, 1]]), ("comesAndGoes", [[1, 1, 1], [0, 0, 0]])]
)
def test_clients_without_a_user_count_as_one(
    server_url: str, modules: Path, transport: str, what: str, seen: list[list[int]]
) -> None:
    """What it prints are the clients by name, their number, and the number of users."""
    endpoint = TRANSPORTS[transport].format(server_url.removeprefix("http://"))
    words = ["node", str(PROGRAM), str(modules), transport, endpoint, f"here.{uuid.uuid4().hex}", what]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert [json.loads(line) for line in done.stdout.splitlines()] == seen
