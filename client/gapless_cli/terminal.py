"""Escapes the characters that a terminal would obey instead of showing: messages may hold some."""

from __future__ import annotations

import json
import re
import sys

_OBEYED = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # controls: C0, and C1, of which one begins a sequence as the escape character does
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # the order in which a line is shown
    "\u2028\u2029\ufff9-\ufffb"  # lines and annotations
    "\ud800-\udfff"  # cannot be written at all
    "]"
)


def printable(text: str) -> str:
    """The text with every character that a terminal would obey as an escape, line ends too."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def printable_lines(text: str) -> str:
    """The same for a text of several lines."""
    return "\n".join(map(printable, text.split("\n")))


def printable_json(document: bytes) -> bytes:
    """JSON with the same meaning, in which JSON escapes replace such characters. Line ends stay: in JSON they
    can only stand between values."""
    return _OBEYED.sub(
        lambda found: found[0] if found[0] == "\n" else json.dumps(found[0])[1:-1], document.decode()
    ).encode()


def shown_json(document: bytes) -> bytes:
    """The document to write on stdout: unchanged for programs, escaped on a terminal."""
    return printable_json(document) if sys.stdout.isatty() else document
