"""Leaks are charged to the test that made them: `tests.leaks`, tried on planted ones."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

PLANTED = """
import asyncio, socket
import pytest
from tests.repo.planted import accept_and_forget, leave_open

@pytest.fixture(scope="session", autouse=True)
def port():
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        yield listener.getsockname()[1]

async def test_clean_before(port): ...

async def test_of_a_helper(port):
    await leave_open(port)

async def test_clean_between(port): ...

LEAVES_OPEN = '''
async def leave_open(port):
    import asyncio
    loop = asyncio.get_running_loop()
    await loop.create_connection(asyncio.Protocol, "127.0.0.1", port)
'''

async def test_of_the_product(port):
    scope = {}
    exec(compile(LEAVES_OPEN, "%(root)s/cache/planted.py", "exec"), scope)
    await scope["leave_open"](port)

def test_of_a_loop_of_its_own(port):
    asyncio.run(leave_open(port))

async def test_of_a_server(port):
    await accept_and_forget()

def test_of_a_socket(port):
    left = [socket.create_connection(("127.0.0.1", port))]
    left.append(left)

def test_clean_after(port): ...
"""
INI = """
[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
filterwarnings = error
"""
ALWAYS = {"of_the_product", "of_a_socket"}
OF_TESTS = {"of_a_helper", "of_a_loop_of_its_own", "of_a_server"}


def outcome(folder: Path, *options: str) -> str:
    """What pytest says of the planted tests."""
    (folder / "test_planted.py").write_text(PLANTED.replace("%(root)s", str(ROOT)))
    (folder / "pytest.ini").write_text(INI)
    command = [sys.executable, "-m", "pytest", "-p", "tests.leaks", "-p", "no:cacheprovider", "-rA"]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "client"), str(ROOT / "pipeline")])
    done = subprocess.run(
        [*command, *options, "test_planted.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("options", "wrong"), [((), ALWAYS), (("--drills",), ALWAYS | OF_TESTS)])
def test_each_is_charged_to_its_own_test(tmp_path: Path, options: tuple[str, ...], wrong: set[str]) -> None:
    said = outcome(tmp_path, *options)
    assert set(re.findall(r"^ERROR test_planted.py::test_(\w+)", said, re.M)) == wrong, said
    told = dict(re.findall(r"^test_planted.py::test_(\w+): .*, made by (.*)$", said, re.M))
    if options:
        assert told == {}
    else:
        assert told.keys() == OF_TESTS
        assert "tests/repo/planted.py" in told["of_a_helper"]
        assert "accept_and_forget" in told["of_a_server"]
