"""The command line of the jobs, as programs: help, options, exit codes."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S, next_line
from tests.pipeline.conftest import Log
from tests.support import ROOT


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-W", "ignore", "-m", "gapless_spark", *arguments]


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GAPLESS_")}
    return {**kept, "PYTHONPATH": str(ROOT / "pipeline"), "PYTHONWARNINGS": "ignore"}


def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command(*arguments), env=environment(), capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done


def test_help_imports_no_spark() -> None:
    script = "import sys\nfrom gapless_spark.cli import make\nmake()\nprint('pyspark' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
    out = run("export", "--help").stdout
    assert "  gapless export --to ./export --follow " in out
    assert "Exit codes: 0 done" in out
    assert run("--version").stdout.startswith("gapless-spark ")


@pytest.mark.parametrize(
    ("arguments", "says", "code"),
    [
        (("--database-url", "x", "--format", "csv"), "--format: 'csv' is none of", 2),
        (("--database-url", "x", "--channels", ">.a"), "channels: '>.a'", 2),
        (("--database-url", "x", "--since", "soon"), "--since is 'soon'", 2),
        (("--database-url", "x", "--conf", "y"), "--conf: 'y'", 2),
        ((), "GAPLESS_DATABASE_URL", 2),
        (("--database-url", "x", "--format", "iceberg", "--to", "/tmp/a%20b"), "--to: /tmp/a%20b has %", 2),
        (("--database-url", "x", "--to", "s3://bucket/x"), "--to: s3: is not served", 2),
        (("--database-url", "postgresql://u:secret@127.0.0.1:1/x"), "cannot be reached", 3),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, arguments: tuple[str, ...], says: str, code: int) -> None:
    err = run("export", "--to", str(tmp_path / "out"), *arguments, code=code).stderr
    assert err.startswith("gapless: ")
    assert says in err
    assert err.count("\n") == 1
    assert "secret" not in err


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    err = run("export", "--to", str(tmp_path), "--database-url", "postgresql://127.0.0.1:1/x", code=2).stderr
    assert "holds something else (mine.txt" in err


@pytest.mark.drill
@pytest.mark.spark
def test_a_follower_is_a_program_that_ends_when_told(plain_log: Log, tmp_path: Path) -> None:
    out = ["export", "--to", str(tmp_path / "out"), "--database-url", plain_log.url]
    preview = json.loads(run(*out, "--dry-run", "--json").stdout)
    assert (preview["messages"], preview["resumes"]) == (0, False)
    plain_log.owner.append("a", ["1"] * 7)
    more = ["--follow", "--interval", "0.1", "--json", "--master", "local[1]"]
    process = subprocess.Popen(
        command(*out, *more), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    first = json.loads(next_line(process, process.stdout))
    assert (first["batch"], first["rows"], first["total"]["files"]) == (1, 7, 1)
    plain_log.owner.append("a", ["2"])
    assert json.loads(next_line(process, process.stdout))["total"]["rows"] == 8
    busy = run(*out, code=6).stderr
    assert f"(process {process.pid})" in busy
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert "8 messages up to id 8 in 1 files" in err
    assert "leave --format out" in run(*out, "--format", "delta", code=2).stderr


@pytest.mark.spark
@pytest.mark.drill
def test_a_java_that_is_killed_is_not_taken_for_a_bad_folder(plain_log: Log, tmp_path: Path) -> None:
    plain_log.owner.append("a", ["1"])
    out = ["--to", str(tmp_path / "out"), "--database-url", f"{plain_log.url}&password=hush"]
    more = ["--follow", "--interval", "0.1", "--json", "--master", "local[1]"]
    process = subprocess.Popen(
        command("export", *out, *more),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert json.loads(next_line(process, process.stdout))["rows"] == 1
    (java,) = (pid for pid in children(process.pid) if Path(f"/proc/{pid}/comm").read_text() == "java\n")
    os.kill(java, signal.SIGKILL)
    plain_log.owner.append("a", ["2"])
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, err
    assert "Spark's Java process ended" in err.splitlines()[-1]
    assert "hush" not in err
    assert run("export", *out, "--json").stdout.count("\n") == 1


@pytest.mark.drill
@pytest.mark.spark
def test_interrupted_while_java_starts_it_leaves_none_behind(plain_log: Log, tmp_path: Path) -> None:
    plain_log.owner.append("a", ["1"])
    out = ["--to", str(tmp_path / "out"), "--database-url", plain_log.url, "--master", "local[1]"]
    process = subprocess.Popen(
        command("export", *out), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while "Spark on" not in next_line(process, process.stderr):
        assert process.poll() is None
    while not (started := children(process.pid)):
        assert process.poll() is None
    for pid in started:
        os.kill(pid, signal.SIGSTOP)  # It must not have started before it is interrupted.
    process.send_signal(signal.SIGINT)
    assert "ending after this batch" in next_line(process, process.stderr)
    process.send_signal(signal.SIGINT)
    for pid in started:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    assert "Exception" not in err
    for pid in started:
        wait_until_gone(pid)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_until_gone(pid: int) -> None:
    """Until the process has ended; it is not ours to wait for."""
    with suppress(ProcessLookupError):
        waiting = os.pidfd_open(pid)
        try:
            assert select.select([waiting], [], [], PATIENCE_S)[0], f"process {pid} is still there"
        finally:
            os.close(waiting)
