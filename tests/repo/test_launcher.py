"""`./gapless` on a checkout of its own, with a lock of nothing, so that no index is asked."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S, next_line
from tests.repo.test_tree import ROOT

CLI = """
import os, sys
print(sys.argv[1:], os.getcwd(), sys.prefix)
"""

LOCKS = ("runtime.txt", "embedded.txt", "spark.txt", "dev.txt")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return check_out(tmp_path / "check out")


@pytest.fixture(scope="module")
def environment_made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment as the launcher makes it, which takes seconds: those who only need one get a copy."""
    folder = check_out(tmp_path_factory.mktemp("made") / "check out")
    code, _, errors = run(folder, "status")
    assert code == 0, errors
    return folder / ".venvs"


@pytest.fixture
def ready(checkout: Path, environment_made: Path) -> Path:
    """A checkout whose environment is there already."""
    shutil.copytree(environment_made, checkout / ".venvs", symlinks=True)
    return checkout


def environments(checkout: Path, lock: str = "") -> list[Path]:
    """Those that are there, of a lock or all."""
    return [path for path in (checkout / ".venvs").glob(f"{lock}*") if path.is_dir()]


def check_out(folder: Path) -> Path:
    (folder / "requirements").mkdir(parents=True)
    (folder / "app").mkdir()
    (folder / "client").mkdir()
    shutil.copy(ROOT / "gapless", folder)
    for lock in LOCKS:
        (folder / "requirements" / lock).write_text("# nothing\n")
    (folder / "app" / "__init__.py").touch()
    shutil.copy(ROOT / "app" / "launch.py", folder / "app")
    (folder / "app" / "cli.py").write_text(CLI)
    return folder


def environment(**more: str) -> dict[str, str]:
    # A Python as the machine has it: not the environment these tests run in.
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("GAPLESS_", "PYTHON"))
    }
    base = Path(getattr(sys, "_base_executable", sys.executable)).parent
    return {**inherited, "PATH": f"{base}{os.pathsep}/usr/bin{os.pathsep}/bin", **more}


def start(checkout: Path, *arguments: str, cwd: Path | None = None, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [checkout / "gapless", *arguments],
        cwd=cwd or checkout,
        env=environment(**more),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(checkout: Path, *arguments: str, cwd: Path | None = None, **more: str) -> tuple[int, str, str]:
    process = start(checkout, *arguments, cwd=cwd, **more)
    output, errors = process.communicate(timeout=5 * PATIENCE_S)
    return process.returncode, output, errors


def test_the_first_run_sets_up_and_the_next_does_not(checkout: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "app").mkdir(parents=True)
    (elsewhere / "app" / "cli.py").write_text("raise SystemExit('the wrong app')")
    code, output, errors = run(checkout, "serve", "--port", "1", cwd=elsewhere)
    [venv] = environments(checkout, "embedded")
    assert (code, output) == (0, f"['serve', '--port', '1'] {elsewhere} {venv}\n"), errors
    assert "this happens once" in errors
    assert "environment ready after" in errors
    assert run(checkout, "status") == (0, f"['status'] {checkout} {venv}\n", "")
    assert (checkout / ".venv").resolve() == venv


def test_a_script_in_the_checkout_is_no_module_and_the_environment_stays_as_it_was(
    ready: Path, tmp_path: Path
) -> None:
    (ready / "app" / "cli.py").write_text("import numbers, os; print(os.environ['PYTHONPATH'])")
    for folder in (ready, tmp_path):
        for name in ("numbers", "sitecustomize", "usercustomize"):
            (folder / f"{name}.py").write_text("raise SystemExit('the script of a user ran')")
    code, output, errors = run(ready, "status", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert (code, output) == (0, f"{tmp_path}\n"), errors


def test_it_runs_through_a_link(ready: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "gapless").symlink_to(ready / "gapless")
    code, output, _ = run(tmp_path / "bin", "status")
    assert (code, output) == (0, f"['status'] {tmp_path / 'bin'} {environments(ready)[0]}\n")


@pytest.mark.drill
def test_a_changed_lock_is_followed(ready: Path) -> None:
    (ready / "requirements" / "embedded.txt").write_text("# nothing more\n")
    [before] = environments(ready)
    assert "this happens once" in run(ready, "status")[2]
    assert run(ready, "status")[2] == ""
    assert environments(ready) != [before], "nobody used it"
    assert len(environments(ready)) == 1


WAITING = "import sys; print('up', flush=True); sys.stdin.readline(); import late; print(late.__file__)"


@pytest.mark.drill
def test_an_environment_in_use_stays_as_it_is(ready: Path) -> None:
    """Whatever is set up meanwhile, and whether that ends or not. A server may import the rest later."""
    [used] = environments(ready)
    [packages] = used.glob("lib/python*/site-packages")
    (packages / "late.py").touch()
    (ready / "app" / "cli.py").write_text(WAITING)
    server = start(ready, "serve")
    assert next_line(server, server.stdout) == "up\n"
    (ready / "app" / "cli.py").write_text(CLI)
    for lock in ("embedded.txt", "spark.txt"):  # The one with less first: it is in the other.
        (ready / "requirements" / lock).write_text("# changed\n")
        command = "export" if lock == "spark.txt" else "status"
        stopped = start(ready, command, "x")
        assert lock in next_line(stopped, stopped.stderr)
        stopped.send_signal(signal.SIGINT)
        stopped.communicate(timeout=PATIENCE_S)
        assert run(ready, command, "x")[0] == 0
    output, _ = server.communicate("\n", timeout=PATIENCE_S)
    assert output == f"{packages / 'late.py'}\n"
    (ready / "requirements" / "embedded.txt").write_text("# changed again\n")
    (ready / "requirements" / "spark.txt").write_text("# changed again\n")
    assert run(ready, "status")[0] == 0
    assert not used.exists(), "nobody uses it any more"


@pytest.mark.drill
def test_commands_do_not_wait_for_an_environment_that_they_do_not_need(ready: Path) -> None:
    (ready / "requirements" / "spark.txt").write_text("# changed\n")
    assert run(ready, "export", "x")[0] == 0
    [venv] = environments(ready, "spark")
    (venv / "gapless-complete").unlink()
    with (ready / ".venvs" / f"{venv.name}.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # As the one that sets it up holds it.
        code, _, errors = run(ready, "status")
        assert (code, errors) == (0, "")


@pytest.mark.drill
def test_a_half_made_environment_is_made_anew(ready: Path) -> None:
    [venv] = environments(ready)
    (venv / "gapless-complete").unlink()
    (venv / "half").touch()
    assert "environment ready" in run(ready, "status")[2]
    assert not (venv / "half").exists()


@pytest.mark.drill
def test_a_killed_first_run_is_repaired(checkout: Path) -> None:
    first = start(checkout, "status")
    assert "setting up" in next_line(first, first.stderr)
    first.kill()
    first.communicate(timeout=PATIENCE_S)
    code, output, errors = run(checkout, "status")
    assert (code, output) == (0, f"['status'] {checkout} {environments(checkout)[0]}\n"), errors


@pytest.mark.drill
def test_an_environment_of_ones_own_is_left_alone(ready: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", ready / ".venv"], check=True)
    before = sorted((ready / ".venv").rglob("*"))
    assert run(ready, "status")[0] == 0
    (ready / "requirements" / "embedded.txt").write_text("# changed\n")
    assert run(ready, "status")[0] == 0
    assert sorted((ready / ".venv").rglob("*")) == before


@pytest.mark.drill
def test_the_link_names_the_development_packages_where_they_are(ready: Path) -> None:
    (ready / "requirements" / "dev.txt").write_text("# changed\n")
    run(ready, "test", "--version")
    [dev] = environments(ready, "dev")
    assert (ready / ".venv").resolve() == dev
    assert run(ready, "--python")[1] == f"{dev / 'bin' / 'python'}\n"
    (ready / "requirements" / "embedded.txt").write_text("# changed\n")
    assert run(ready, "status")[2] == "", "what has more will do"
    assert (ready / ".venv").resolve() == dev


@pytest.mark.drill
def test_a_second_first_run_waits_for_the_first(ready: Path) -> None:
    [venv] = environments(ready)
    (venv / "gapless-complete").unlink()
    with (ready / ".venvs" / f"{venv.name}.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = start(ready, "status")
        assert "another gapless is setting up" in next_line(second, second.stderr)
    assert second.communicate(timeout=5 * PATIENCE_S)[0].startswith("['status']")


@pytest.mark.drill
def test_two_first_runs_at_once(checkout: Path) -> None:
    both = [start(checkout, str(number)) for number in range(2)]
    outputs = [process.communicate(timeout=5 * PATIENCE_S) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum("environment ready" in errors for _, errors in outputs) == 1


def test_no_python_that_fits_is_told_in_one_line(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for tool in ("sh", "readlink", "dirname"):
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool) or tool)
    code, output, errors = run(checkout, "status", PATH=str(tmp_path / "bin"))
    assert (code, output, errors.count("\n")) == (1, "", 1)
    assert "needs Python 3.11 or newer" in errors


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_a_checkout_that_cannot_be_written(checkout: Path, tmp_path: Path) -> None:
    checkout.chmod(0o555)
    try:
        assert "set GAPLESS_HOME" in run(checkout, "status")[2]
        output = run(checkout, "status", GAPLESS_HOME=str(tmp_path / "home"))[1]
        assert str(tmp_path / "home" / "venvs") in output
    finally:
        checkout.chmod(0o755)


@pytest.mark.drill
def test_spark_is_added_by_the_commands_that_need_it(ready: Path) -> None:
    (ready / "requirements" / "spark.txt").write_text("# nothing more\n")
    for arguments in (("export",), ("export", "--help"), ("analyze", "--help"), ("serve", "export")):
        assert "spark.txt" not in run(ready, *arguments)[2]
    code, output, errors = run(ready, "export", "--to", "x")
    [spark] = environments(ready, "spark")
    assert (code, output) == (0, f"['export', '--to', 'x'] {ready} {spark}\n"), errors
    assert "spark.txt" in errors
    assert "1.3 GB on disk" in errors
    assert run(ready, "analyze")[2] == ""
    assert run(ready, "status") == (0, f"['status'] {ready} {environments(ready, 'embedded')[0]}\n", "")


@pytest.mark.drill
def test_servers_of_ones_own_need_no_embedded_ones(ready: Path) -> None:
    for name in LOCKS:
        (ready / "requirements" / name).write_text(f"# {name} as nothing was made from\n")

    def told() -> str:
        return run(ready, "serve", GAPLESS_DATABASE_URL="postgresql://x", GAPLESS_REDIS_URL="redis://x")[2]

    assert "(runtime.txt," in told()
    assert told() == ""
    assert "(embedded.txt," in run(ready, "serve", GAPLESS_DATABASE_URL="postgresql://x")[2]
    assert told() == "", "what has more will do"


def test_test_runs_pytest_in_the_checkout(ready: Path) -> None:
    code, _, errors = run(ready, "test", "--version")
    assert code == 1
    assert "No module named pytest" in errors  # the lock is empty: what matters is what was asked for
