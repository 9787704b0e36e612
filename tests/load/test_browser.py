"""The rules for browsers in a real Chromium: the short form of `load.browser`."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from load.browser.__main__ import CONTROL
from load.children import CHECKOUT
from tests.patience import PATIENCE_S

SHORT = ("another site", "a rebound name", CONTROL, "an allowed chat")


@pytest.mark.drill
@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no Chromium")
def test_foreign_pages_can_do_nothing_and_an_allowed_one_everything() -> None:
    command = [sys.executable, "-m", "load.browser", *(f"--only={name}" for name in SHORT)]
    done = subprocess.run(
        command, cwd=CHECKOUT, capture_output=True, text=True, timeout=5 * PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
