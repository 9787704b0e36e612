"""The page on the architecture names files that are there, and few that its rule does not lead to."""

from __future__ import annotations

import re

from app.api.table import ROUTES
from tests.docs.pages import read
from tests.support import ROOT

MAX_EXCEPTIONS = 25
_ROW = re.compile(r"^\| (?P<topic>.+) \| (?P<file>.*) \|$", re.MULTILINE)
_FILE = re.compile(r"`(?P<path>[\w/.]+\.(?:py|sql))`(?: \((?P<names>`\w+`(?:, `\w+`)*)\))?")
_PATH = re.compile(r"`((?:app|cache|client|db|load|pipeline|subscriptions|tests)/[\w/.*]*)`")


def exceptions() -> list[tuple[str, str]]:
    part = read("docs/architecture.md").partition("The exceptions, which no noun leads to.")[2]
    found = _ROW.findall(part.partition("\n## ")[0])[1:]
    return [(topic, file) for topic, file in found if file.strip("- ")]


def in_full(path: str) -> str:
    if "/" not in path:
        return f"db/functions/{path}"
    return f"subscriptions/{path}" if path.startswith(("domain/", "engine/")) else path


def test_few_topics_are_where_no_noun_leads() -> None:
    assert 0 < len(exceptions()) <= MAX_EXCEPTIONS


def test_each_exception_has_one_file_that_is_there_and_defines_what_it_names() -> None:
    for topic, file in exceptions():
        named = _FILE.fullmatch(file)
        assert named is not None, f"{topic}: {file}"
        path = ROOT / in_full(named["path"])
        assert path.is_file(), file
        for name in re.findall(r"\w+", named["names"] or ""):
            assert re.search(rf"\b{name}\b", path.read_text()), f"{topic}: {name}"


def test_each_path_of_the_page_is_there() -> None:
    paths = set(_PATH.findall(read("docs/architecture.md")))
    assert len(paths) > 50, "else the form of the page has changed"
    assert [path for path in sorted(paths) if not any(ROOT.glob(path.rstrip("/")))] == []


def test_each_route_is_answered_in_the_file_of_its_noun() -> None:
    """Those of one path are in one file, so that a noun has one. A stream is its face's."""
    nouns: dict[str, set[str]] = {}
    for route in ROUTES:
        module = route.handler.__module__
        assert module.startswith(("app.api.", "app.faces.")), module
        nouns.setdefault(route.path, set()).add(module)
    shared = {path for path, modules in nouns.items() if len(modules) > 1}
    assert shared == {"/v1/channels/{channel}/messages"}, "publish and history"
