"""A kept history is judged like the run it came from."""

from __future__ import annotations

from pathlib import Path

import pytest

from load.archive import read, write
from load.checker import check
from load.history import Gap
from tests.load.sample import sample


@pytest.mark.parametrize("seed", range(5))
def test_a_history_comes_back_equal(seed: int, tmp_path: Path) -> None:
    history = sample(seed).history()
    history.fault("redis killed", True)
    history.gap(history.cursors[0], Gap("chat.room0", 4, 2))
    history.resume(history.cursors[1], 17)
    spoiled = history.cursors[2]
    history.deliver(spoiled, spoiled.ids[0], "elsewhere", 9, 9)
    write(history, tmp_path / "kept" / "h.jsonl.gz")
    again = read(tmp_path / "kept" / "h.jsonl.gz")
    assert again == history
    assert check(again).report() == check(history).report()
