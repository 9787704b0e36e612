"""The package stands alone: typed, small, and nothing of the service's in it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import gapless
import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "client" / "gapless"
SOURCES = sorted(PACKAGE.rglob("*.py"))


def within(source: Path) -> str:
    return source.relative_to(PACKAGE).as_posix()


OVER_WEBSOCKET = {"_async/connection.py", "_async/link.py"}


def imported(source: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names.add(node.module or "")
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("source", SOURCES, ids=within)
def test_only_the_standard_library_and_httpx_are_imported(source: Path) -> None:
    websockets = {"websockets"} if within(source) in OVER_WEBSOCKET else set()
    assert imported(source) <= set(sys.stdlib_module_names) | {"gapless", "httpx"} | websockets


def test_websockets_is_an_extra_that_only_connections_need() -> None:
    project = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text())["project"]
    assert [one.partition(">")[0] for one in project["optional-dependencies"]["websocket"]] == ["websockets"]
    script = """
import asyncio, sys
sys.modules["websockets"] = None
from gapless import AsyncClient
async def main():
    async with AsyncClient("http://gapless.test") as client:
        try:
            client.connect()
        except ImportError as error:
            print(error)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=PACKAGE.parent, capture_output=True, text=True)
    assert "gapless[websocket]" in done.stdout, done.stderr


def test_the_command_line_needs_what_its_extra_names_and_nothing_of_the_service() -> None:
    project = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text())["project"]
    extra = {one.partition(">")[0] for one in project["optional-dependencies"]["cli"]}
    sources = (ROOT / "client" / "gapless_cli").rglob("*.py")
    found = set[str]().union(*map(imported, sources)) - set(sys.stdlib_module_names)
    assert found == {"gapless", "gapless_cli", "httpx", *extra}


def test_the_decisions_import_no_transport() -> None:
    faces = {"_async/calls.py", "_async/stream.py", "_sync/calls.py", "_sync/stream.py", "_transport.py"}
    assert {within(source) for source in SOURCES if "httpx" in imported(source)} == faces


def test_the_package_says_what_it_is() -> None:
    project = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text())["project"]
    assert project["name"] == "gapless"
    assert project["license"] == "Apache-2.0"
    assert [one.partition(">")[0] for one in project["dependencies"]] == ["httpx"]
    assert (PACKAGE / "py.typed").exists()
    assert gapless.__version__.count(".") == 2


def test_every_public_name_is_there_and_says_what_it_is() -> None:
    for name in gapless.__all__:
        assert getattr(gapless, name).__doc__, name


def test_the_readme_is_short_and_its_examples_are_python() -> None:
    readme = (ROOT / "client" / "README.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert len(readme.splitlines()) <= 150
    assert len(examples) == 5
    for example in examples:
        compile(example, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.drill
def test_a_type_checker_concludes_what_a_caller_expects() -> None:
    cases = Path(__file__).with_name("typing_cases.py")
    command = [sys.executable, "-m", "mypy", "--strict", "--warn-unused-ignores", "gapless", str(cases)]
    done = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
