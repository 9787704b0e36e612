"""A service that is killed and started at once, round after round, for real.

Its history is judged by `load.checker`, as the chat's is.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from load.children import CHECKOUT


@pytest.mark.drill
def test_it_starts_at_once_after_everything_was_killed() -> None:
    command = [sys.executable, "-m", "load.crashes", "--rounds", "3", "--seconds", "0.5", "--seed", "8"]
    answer = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "clean: 0 starts refused, 0 lost, 0 doubled, 0 out of order, seq dense" in answer.stdout
