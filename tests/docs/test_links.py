"""Links lead somewhere, and pages have the form they promise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import pages, read
from tests.support import ROOT

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as they are made by what renders it."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in _HEADING.findall(text))
    return {heading.replace(" ", "-") for heading in words}


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_links_resolve(page: Path) -> None:
    text = _CODE.sub("", page.read_text())
    for link in _LINK.findall(text):
        if "://" in link or link.startswith("mailto:"):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.resolve().is_relative_to(ROOT), link
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_readme_is_short_and_names_every_page() -> None:
    readme = read("README.md")
    assert len(readme.splitlines()) <= 150
    for page in ("quickstart", "protocol", "reference", "operations", "architecture", "glossary"):
        assert f"(docs/{page}.md)" in readme


def test_the_browser_page_is_short_and_shows_text_only() -> None:
    page = read("docs/browser.html")
    assert len(page.splitlines()) <= 60
    assert "new EventSource(" in page
    assert not re.search(r"\.innerHTML|document\.write", page)
