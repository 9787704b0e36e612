"""Scripts of a user lie in the checkout and in the current folder, under whatever names they like."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.conftest import Database, service_environment
from tests.patience import PATIENCE_S, eventually
from tests.support import ROOT, RunningService

OURS = ("app", "cache", "db", "subscriptions", "client", "requirements")
AT_START = ("sitecustomize", "usercustomize")
NEVER = "open({trace!r}, 'a').write({name!r} + '\\n'); raise SystemExit('the script of a user ran')\n"


def packages() -> set[str]:
    """What is installed beside us."""
    folder = Path(httpx.__file__).parent.parent
    return {path.stem for path in folder.iterdir() if path.suffix in ("", ".py") and path.stem.isidentifier()}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Which scripts of the user were run."""
    return tmp_path / "trace"


def scatter(folder: Path, trace: Path) -> None:
    """A script named like each module that anything may import."""
    for name in {*sys.stdlib_module_names, *packages(), *AT_START, "simplejson", "trio", "orjson", "h2"}:
        if not (folder / name).exists():
            (folder / f"{name}.py").write_text(NEVER.format(trace=str(trace), name=name))


@pytest.fixture
def checkout(tmp_path: Path, trace: Path) -> Path:
    """A copy of this one, in which a user has worked."""
    folder = tmp_path / "checkout"
    for name in OURS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    scatter(folder, trace)
    scatter(folder / "client", trace)
    return folder


@pytest.fixture
def standing(tmp_path: Path, trace: Path) -> Path:
    """The folder the user stands in, and has on the path of programs of their own."""
    folder = tmp_path / "standing"
    folder.mkdir()
    scatter(folder, trace)
    return folder


def command(checkout: Path) -> tuple[str, ...]:
    """What `./gapless` in that checkout hands over to."""
    return (sys.executable, "-I", str(checkout / "app" / "launch.py"), "app.cli")


def paths(standing: Path) -> dict[str, str]:
    return {
        "PYTHONPATH": str(standing),
        "PYTHONUSERBASE": str(standing),
        "PYTHONSTARTUP": str(standing / "this.py"),
    }


def worker(service: RunningService) -> int | None:
    """The one worker's process."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_bytes().rpartition(b")")[2].split()[1])
                if (
                    parent == service.process.pid
                    and b"app.process.worker" in (folder / "cmdline").read_bytes()
                ):
                    return int(folder.name)
            except OSError:
                continue
    return None


async def test_no_script_of_the_user_is_imported_by_the_service_nor_by_a_worker_that_replaces_another(
    checkout: Path, standing: Path, trace: Path, database: Database, redis_url: str, tmp_path: Path
) -> None:
    environment = service_environment(database, redis_url, tmp_path / "home") | paths(standing)
    service = RunningService(environment, command=command(checkout), folder=standing)
    try:
        killed = await eventually(lambda: worker(service))
        os.kill(killed, signal.SIGKILL)
        await eventually(lambda: worker(service) not in (None, killed))
        address = f"{service.url}/v1/channels/shadow.test/messages"
        published = await eventually(lambda: _published(address))
        assert published.status_code == 201
    finally:
        service.stop()
    assert not trace.exists(), trace.read_text()


def _published(address: str) -> httpx.Response | None:
    try:
        return httpx.post(address, json={"data": 1}, timeout=PATIENCE_S)
    except httpx.TransportError:
        return None


@pytest.mark.parametrize("arguments", [("version",), ("doctor", "--json"), ("publish", "--help")])
def test_no_script_of_the_user_is_imported_by_a_command(
    arguments: tuple[str, ...], checkout: Path, standing: Path, trace: Path, tmp_path: Path
) -> None:
    environment = {**os.environ, **paths(standing), "GAPLESS_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [*command(checkout), *arguments], env=environment, cwd=standing, capture_output=True, text=True
    )
    assert done.stdout, done.stderr
    assert not trace.exists(), trace.read_text()


@pytest.mark.drill
@pytest.mark.spark
def test_no_script_of_the_user_is_imported_by_a_job_nor_by_what_spark_starts_for_it(
    checkout: Path, standing: Path, trace: Path, database: Database, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "pipeline", checkout / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    database_url = ["--database-url", database.owner_url]
    done = subprocess.run(
        [*command(checkout), "export", "--to", str(tmp_path / "out"), "--master", "local[1]", *database_url],
        env={**os.environ, **paths(standing), "GAPLESS_HOME": str(tmp_path / "home")},
        cwd=standing,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not trace.exists(), trace.read_text()
