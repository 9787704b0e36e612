"""Runs the command as its users do: a process of its own, against a real service."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import pytest

from app import launch
from load import children
from tests.cli.warm import Warm
from tests.patience import PATIENCE_S

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]
COMMAND = launch.command("app.cli")


def free_port() -> str:
    """For a service that has to come back to where it was."""
    return str(children.free_port())


def environment(home: Path, url: str, changes: dict[str, str]) -> dict[str, str]:
    """The caller's, without settings that happen to stand there."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GAPLESS_")}
    return {**kept, "GAPLESS_HOME": str(home), "GAPLESS_URL": url, **changes}


class Process(subprocess.Popen[str]):
    """Ends with its block, whatever went wrong in there."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, error, trace)


@pytest.fixture
def start(tmp_path: Path, server_url: str) -> Start:
    """Starts a command and does not wait for it."""

    def started(*arguments: str, url: str = server_url, **changes: str) -> subprocess.Popen[str]:
        return Process(
            [*COMMAND, *arguments],
            env=environment(tmp_path / "home", url, changes),
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return started


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    made = Warm()
    yield made
    made.close()


@pytest.fixture
def run(tmp_path: Path, server_url: str, warm: Warm) -> Run:
    """Runs a command to its end; `code` is what it has to end with, or None."""

    def ran(
        *arguments: str,
        input: str = "",  # noqa: A002 (as subprocess calls it)
        code: int | None = 0,
        url: str = server_url,
        **changes: str,
    ) -> subprocess.CompletedProcess[str]:
        variables = environment(tmp_path / "home", url, changes)
        ended, out, err = warm.run(arguments, variables, tmp_path, input, 5 * PATIENCE_S)
        assert code in (ended, None), f"{arguments}: {ended}\n{out}\n{err}"
        assert "Traceback" not in err, err
        return subprocess.CompletedProcess(arguments, ended, out, err)

    return ran
