"""The table of topics names one file for each topic, and the file is there."""

from __future__ import annotations

import re

from tests.docs.pages import read
from tests.support import ROOT

_ROW = re.compile(r"^\| (?P<topic>.+) \| (?P<file>.*) \|$", re.MULTILINE)
_FILE = re.compile(r"`(?P<path>[\w/.]+\.(?:py|sql))`(?: \((?P<names>`\w+`(?:, `\w+`)*)\))?")


def rows() -> list[tuple[str, str]]:
    page = read("docs/architecture.md")
    part = page.partition("### Where each topic of the protocol is decided")[2].partition("\n## ")[0]
    found = _ROW.findall(part)[1:]
    return [(topic, file) for topic, file in found if file.strip("- ")]


def in_full(path: str) -> str:
    if "/" not in path:
        return f"db/functions/{path}"
    return f"subscriptions/{path}" if path.startswith(("domain/", "engine/")) else path


def test_each_topic_has_one_file_that_is_there_and_defines_what_it_names() -> None:
    assert len(rows()) > 100, "else the form of the table has changed"
    for topic, file in rows():
        named = _FILE.fullmatch(file)
        assert named is not None, f"{topic}: {file}"
        path = ROOT / in_full(named["path"])
        assert path.is_file(), file
        for name in re.findall(r"\w+", named["names"] or ""):
            assert re.search(rf"\b{name}\b", path.read_text()), f"{topic}: {name}"
