"""The Spin model of the merge holds in every state, and breaks without any one of the three healers, or where
ids are read without the counter's lock."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.support import ROOT

MODEL = ROOT / "docs" / "merge.pml"
INSTALL = Path(__file__).with_name("install_spin.sh")


@pytest.fixture(scope="session", autouse=True)
def _spin() -> None:
    """Spin and a C compiler, brought here if that can be done."""
    if shutil.which("spin") is None:
        subprocess.run([INSTALL], check=False, capture_output=True, timeout=5 * PATIENCE_S)
    if shutil.which("spin") is None or shutil.which("gcc") is None:
        pytest.skip("spin or gcc is missing and cannot be installed here")


def explore(folder: Path, *flags: str) -> tuple[int, int]:
    """All states of the model under these flags: errors and states."""
    shutil.copy(MODEL, folder / "model.pml")
    defines = [f"-D{flag}" for flag in flags]
    subprocess.run(["spin", *defines, "-a", "model.pml"], cwd=folder, check=True, capture_output=True)
    compile_ = ["gcc", "-O2", "-w", "-DSAFETY", "-DNOREDUCE", "-o", "pan", "pan.c"]
    subprocess.run(compile_, cwd=folder, check=True)
    said = subprocess.run(
        ["./pan", "-m100000", "-w22"],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        timeout=5 * PATIENCE_S,
    ).stdout
    errors, states = re.search(r"errors: (\d+)", said), re.search(r"(\d+) states, stored", said)
    assert errors is not None, said
    assert states is not None, said
    assert "max search depth too small" not in said
    return int(errors[1]), int(states[1])


def test_the_merge_holds_in_every_state(tmp_path: Path) -> None:
    errors, states = explore(tmp_path)
    assert errors == 0
    assert states > 1_000_000


@pytest.mark.drill
@pytest.mark.parametrize("switch", ["NO_DEDUPE", "NO_BACKFILL", "NO_SWEEP"])
def test_no_healer_can_be_missed(tmp_path: Path, switch: str) -> None:
    errors, _ = explore(tmp_path, switch)
    assert errors == 1


@pytest.mark.drill
def test_the_merge_of_the_whole_log_holds_in_every_state(tmp_path: Path) -> None:
    """The counter's page holds an id for a moment that nobody has taken: no tick reads it then."""
    errors, states = explore(tmp_path, "LOG")
    assert errors == 0
    assert states > 1_000_000


@pytest.mark.drill
@pytest.mark.parametrize("watermark", [[], ["BELIEVES"]])
def test_a_last_id_read_without_the_lock_loses_a_message(tmp_path: Path, watermark: list[str]) -> None:
    """Whether or not the watermark lets go of what the next reading contradicts: it need not."""
    errors, _ = explore(tmp_path, "LOG", "PLAIN_READ", *watermark)
    assert errors == 1
