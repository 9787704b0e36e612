"""The pages of the documentation and the fenced blocks in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.support import ROOT

_FENCE = re.compile(
    r"(?P<skip><!-- not run[^>]*-->\n\n?)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
ANSWERS = ("json", "text", "http")


@dataclass(frozen=True, slots=True)
class Fence:
    """A fenced block. `answer` is the text of the next one when it directly follows and shows output."""

    page: str
    line: int
    language: str
    text: str
    answer: str | None
    skipped: bool

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Every page for people, in one order."""
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
    return [*top, *sorted((ROOT / "docs").rglob("*.md"))]


def read(name: str) -> str:
    """The text of a page, named from the root of the checkout."""
    return (ROOT / name).read_text()


def fences(name: str) -> list[Fence]:
    """The fenced blocks of a page, in order."""
    text = read(name)
    found = list(_FENCE.finditer(text))
    blocks = []
    for block, following in zip(found, [*found, None][1:], strict=True):
        answer = None
        if following is not None and following["language"] in ANSWERS:
            between = text[block.end() : following.start("language") - 3]
            answer = following["text"] if not between.strip() else None
        line = text.count("\n", 0, block.start("language")) + 1
        blocks.append(Fence(name, line, block["language"], block["text"], answer, bool(block["skip"])))
    return blocks


def section(name: str, title: str) -> str:
    """What stands between `<!-- title: … -->` and the next `<!-- end -->` of a page."""
    found = re.search(rf"<!-- {title}:[^>]*-->\n(.*?)<!-- end -->", read(name), re.DOTALL)
    assert found is not None, f"{name} has no section {title}"
    return found[1]
