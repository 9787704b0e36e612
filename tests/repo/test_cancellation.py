"""What loses a cancellation is used nowhere."""

from __future__ import annotations

import ast

import pytest

from tests.repo.test_tree import sources

FOLDERS = ["app", "cache", "client", "db", "pipeline", "subscriptions"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_nothing_waits_with_what_loses_a_cancellation(folder: str) -> None:
    """`asyncio.wait_for` of Python 3.11 loses one that comes with the result. `asyncio.timeout` doesn't."""
    wrong = [
        f"{path}:{node.lineno}"
        for path, text in sources().items()
        if path.parts[0] == folder and path.suffix == ".py"
        for node in ast.walk(ast.parse(text))
        if _is_wait_for(node)
    ]
    assert wrong == []


def _is_wait_for(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id="asyncio" | "tasks"), attr="wait_for"):
            return True
        case ast.ImportFrom(module="asyncio" | "asyncio.tasks", names=names):
            return any(name.name == "wait_for" for name in names)
        case _:
            return False


@pytest.mark.parametrize("source", ["asyncio.wait_for(x, 1)", "from asyncio import timeout, wait_for as w"])
def test_it_is_seen(source: str) -> None:
    assert any(map(_is_wait_for, ast.walk(ast.parse(source))))
