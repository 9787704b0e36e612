"""The table of promises in CONTRIBUTING.md names tests that exist, and in the tier that it says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
ROWS = [row.split("|") for row in re.findall(r"(?m)^\| P\d .*$", PAGE)]


def named(cell: str) -> list[tuple[str, str]]:
    return re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", cell)


def function(file: str, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef:
    """The test. Raises LookupError if the file has none of this name."""
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return node
    raise LookupError(f"{file} has no {name}")


def is_drill(test: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether all of the test is one: some of its parameters alone do not make it one."""
    return any(ast.unparse(decorator) == "pytest.mark.drill" for decorator in test.decorator_list)


def test_each_promise_has_a_row() -> None:
    assert [row[1].split()[0] for row in ROWS] == [f"P{n}" for n in range(1, 9)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1].split()[0])
def test_each_promise_has_tests_in_the_landing_tier(row: list[str]) -> None:
    landing, rest = named(row[2]), named(row[3])
    assert landing
    assert [test for test in landing if is_drill(function(*test))] == []
    for test in rest:
        function(*test)
