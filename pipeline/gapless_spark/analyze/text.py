"""Names and numbers as the page shows them. Names of channels and senders are untrusted: they must not become
markup, be longer than a line, or reverse the direction of text."""

from __future__ import annotations

import html
import unicodedata
from datetime import datetime

MAX_NAME = 64
# Control characters, formats that reorder text, private and unassigned characters, line separators.
_UNSHOWN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def tame(text: object, limit: int = MAX_NAME) -> str:
    """One line of at most `limit` visible characters, not escaped."""
    shown = "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in _UNSHOWN else c
        for c in str(text)[: limit * 4]
    )
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def escaped(text: object, limit: int = MAX_NAME) -> str:
    """Text for HTML, also inside quoted attributes."""
    return html.escape(tame(text, limit))


def plotted(text: object, limit: int) -> str:
    """Text for labels of plots. Plotly reads a few elements in them, and variables in braces in hover texts,
    but no escaped quotes."""
    return html.escape(tame(text, limit), quote=False).replace("%{", "% {")


def number(value: float | None, digits: int = 0) -> str:
    """A number with thousands separators; a dash for None."""
    return "–" if value is None else f"{value:,.{digits}f}"


def sized(count: float) -> str:
    """A number of bytes with a decimal unit, such as `1.5 MB`."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:,.0f} {unit}" if unit == "B" or count >= 100 else f"{count:,.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def span(seconds: float | None) -> str:
    """A duration in at most two units: `2 h 5 min`, `41 s`, `0.31 s`; a dash for None."""
    if seconds is None:
        return "–"
    if seconds < 10:
        return f"{seconds:.2g} s" if seconds else "0 s"
    for width, unit, lower_width, lower_unit in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if seconds >= width:
            whole, left = divmod(round(seconds / lower_width), width // lower_width)
            return f"{whole:,} {unit}" + (f" {left} {lower_unit}" if left else "")
    return f"{seconds:.0f} s"


def moment(at: datetime | None) -> str:
    """A time to the minute, in its own zone; a dash for None."""
    return "–" if at is None else f"{at:%Y-%m-%d %H:%M}"


def many(count: int, noun: str) -> str:
    """A count with its noun: `1 message`, `2 messages`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
