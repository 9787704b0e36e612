"""`gapless secrets`: what signs is shown by its times, and rotated."""

from __future__ import annotations

import json
from typing import Any

from tests.cli.conftest import Run
from tests.conftest import Database


def test_listed_and_rotated(run: Run, database: Database) -> None:
    def ask(*arguments: str, code: int = 0) -> Any:
        urls = {"GAPLESS_DATABASE_URL": database.service_url, "GAPLESS_MIGRATE_URL": database.owner_url}
        return run("secrets", *arguments, code=code, **urls)

    def listed() -> list[Any]:
        return [json.loads(line) for line in ask("list").stdout.splitlines()]

    assert [(one["for"], one["accepted_until"]) for one in listed()] == [("hints", None), ("receipts", None)]
    assert "a new secret signs receipts from" in ask("rotate", "receipts", "--overlap", "1h").stderr
    hints, new, old = listed()
    assert [one["for"] for one in (hints, new, old)] == ["hints", "receipts", "receipts"]
    assert new["accepted_until"] is None
    assert old["signs_from"] < new["signs_from"] < old["accepted_until"]
    assert "is no duration" in ask("rotate", "hints", "--overlap", "long", code=2).stderr
    assert "hints" in ask("rotate", "tokens", code=2).stderr
