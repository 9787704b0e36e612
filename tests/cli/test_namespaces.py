"""`gapless namespaces`, on a database of one's own and on the embedded one."""

from __future__ import annotations

import json
from typing import Any

import asyncpg

from tests.cli.conftest import Run
from tests.conftest import Database


def test_on_a_database_beside_its_service(run: Run, database: Database, owner: asyncpg.Connection) -> None:
    def ask(*arguments: str, code: int = 0) -> Any:
        return run("namespaces", *arguments, code=code, GAPLESS_DATABASE_URL=database.service_url)

    put = ask("put", "acme", "--limit", "streams=500", "--limit", "bytes_per_second=1.5", "--json")
    limits = {"streams": 500, "bytes_per_second": 1.5}
    assert json.loads(put.stdout) == {"name": "acme", "limits": limits, "shared": True}
    ask("put", "acme")
    listed = [json.loads(line) for line in ask("list").stdout.splitlines()]
    assert [(n["name"], n["shared"], n["limits"]) for n in listed] == [
        ("acme", True, limits),
        ("default", False, {}),
    ]
    assert "needs --yes" in ask("delete", "acme", code=2).stderr
    assert "deleted namespace acme" in ask("delete", "acme", "--yes").stderr
    assert "namespace acme does not exist" in ask("delete", "acme", "--yes", code=1).stderr
    assert "letters, digits" in ask("put", "a b", code=2).stderr
    assert "streams=500" in ask("put", "acme", "--limit", "streams=many", code=2).stderr


def test_on_an_embedded_postgres_that_has_never_run(run: Run) -> None:
    assert run("namespaces", "put", "acme").returncode == 0
    names = [json.loads(line)["name"] for line in run("namespaces").stdout.splitlines()]
    assert names == ["acme", "default"]
