"""`gapless keys`, on a database of one's own and on an embedded one that has never run."""

from __future__ import annotations

import json
import re
import socket
from typing import Any

import asyncpg
import httpx
import pytest

from tests.cli.conftest import Run
from tests.conftest import Database, Serve
from tests.patience import wait_until

KEY = re.compile(r"gapless_[a-z0-9]{12}_[0-9a-f]{64}\n")


def test_made_listed_revoked_and_opened(
    run: Run, serve: Serve, database: Database, owner: asyncpg.Connection
) -> None:
    url = serve().url

    def ask(*arguments: str, code: int = 0) -> Any:
        urls = {"GAPLESS_DATABASE_URL": database.service_url, "GAPLESS_MIGRATE_URL": database.owner_url}
        return run("keys", *arguments, code=code, **urls)

    def status(key: str | None) -> int:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return httpx.get(f"{url}/v1/whoami", headers=headers, timeout=None).status_code

    made = ask("create", "ann", "--grant", "publish,subscribe:chat.>", "--expires", "90d")
    assert KEY.fullmatch(made.stdout)
    assert "every request needs a key from now on" in made.stderr
    ann = made.stdout.strip()
    ops = ask("create", "ops", "--operator").stdout.strip()
    assert [status(ann), status(ops)] == [200, 200]
    first, second = [json.loads(line) for line in ask("list").stdout.splitlines()]
    assert (first["name"], first["grants"], first["id"]) == (
        "ann",
        [{"actions": ["publish", "subscribe"], "channels": ["chat.>"], "subscriptions": ["chat.>"]}],
        ann.split("_")[1],
    )
    assert (second["name"], second["operator"]) == ("ops", True)
    assert ann not in json.dumps(first)
    assert run("publish", "chat.a", "1", url=url, GAPLESS_TOKEN=ann).returncode == 0
    assert "forbidden" in run("publish", "other", "1", url=url, GAPLESS_TOKEN=ann, code=1).stderr
    ask("revoke", first["id"])
    assert "does not exist" in ask("revoke", first["id"], code=1).stderr
    assert "needs --yes" in ask("open", code=2).stderr
    ask("open", "--yes")
    assert ask("list").stdout == ""
    assert "the actions before the colon are" in ask("create", "x", "--grant", "fly:>", code=2).stderr
    assert "say what it may do" in ask("create", "x", code=2).stderr
    assert "at least one" in ask("create", "x", "--operator", "--expires", "0d", code=2).stderr
    assert status(None) == 200, "a key that was refused closes nothing"
    assert (
        "namespace acme does not exist"
        in ask("create", "x", "--namespace", "acme", "--operator", code=1).stderr
    )


def test_the_first_key_before_the_first_start(run: Run) -> None:
    assert KEY.fullmatch(run("keys", "create", "ops", "--operator").stdout)
    assert json.loads(run("keys").stdout)["name"] == "ops"


def test_other_machines_are_served_once_a_key_was_made(
    run: Run, serve: Serve, database: Database, redis_url: str
) -> None:
    """`serve` refuses without one. When the installation is opened while it serves, they are refused too."""
    urls = {"GAPLESS_DATABASE_URL": database.service_url, "GAPLESS_MIGRATE_URL": database.owner_url}
    refused = run("serve", "--host", "0.0.0.0", "--port", "0", code=2, GAPLESS_REDIS_URL=redis_url, **urls)
    assert "Make a key with gapless keys create" in refused.stderr
    key = run("keys", "create", "ops", "--operator", **urls).stdout.strip()
    port = httpx.URL(serve("--host", "0.0.0.0").url).port
    with httpx.Client(timeout=None, base_url=f"http://{address_of_this_machine()}:{port}") as client:
        assert client.get("/v1/whoami").status_code == 401
        assert client.get("/v1/whoami", headers={"authorization": f"Bearer {key}"}).status_code == 200
        run("keys", "open", "--yes", **urls)
        wait_until(lambda: client.get("/v1/whoami").status_code == 403)
        assert client.get("/healthz").status_code == 200
    assert httpx.get(f"http://127.0.0.1:{port}/v1/whoami", timeout=None).status_code == 200


def address_of_this_machine() -> str:
    """The address under which another machine would reach it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # Sends nothing.
        except OSError:
            pytest.skip("no other machine reaches this one")
        return str(probe.getsockname()[0])
