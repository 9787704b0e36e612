"""What loses a cancellation is used nowhere."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.repo.test_tree import sources

FOLDERS = ["app", "cache", "client", "db", "load", "pipeline", "subscriptions", "tests"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_nothing_waits_with_what_loses_a_cancellation(folder: str) -> None:
    """`asyncio.wait_for` of Python 3.11 loses one that comes with the result. `asyncio.timeout` doesn't."""
    wrong = [
        f"{path}:{line}"
        for path, text in sources().items()
        if path.parts[0] == folder and path.suffix == ".py"
        for line in lines(text)
    ]
    assert wrong == []


def lines(source: str) -> Iterator[int]:
    """Where `asyncio.wait_for` is used or imported."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id="asyncio" | "tasks"), attr="wait_for", lineno=line):
                yield line
            case ast.ImportFrom(module="asyncio" | "asyncio.tasks", names=names, lineno=line):
                if any(name.name == "wait_for" for name in names):
                    yield line


@pytest.mark.parametrize("source", ["asyncio.wait_for(x, 1)", "from asyncio import timeout, wait_for as w"])
def test_it_is_seen(source: str) -> None:
    assert list(lines(source)) == [1]
