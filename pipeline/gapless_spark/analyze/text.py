"""Names and numbers as a page may show them. Channels and senders are whatever somebody sent: nothing of them
is markup, and none may be longer than a line, or turn the writing around."""

from __future__ import annotations

import html
import unicodedata
from datetime import datetime

MAX_NAME = 64
# Controls, formats that reorder what follows, private and unassigned characters, line separators.
_UNSHOWN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def tame(text: object, limit: int = MAX_NAME) -> str:
    """One line of visible characters, at most `limit` of them. No markup is escaped yet."""
    shown = "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in _UNSHOWN else c
        for c in str(text)[: limit * 4]
    )
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def escaped(text: object, limit: int = MAX_NAME) -> str:
    """For HTML, as text or inside quotes."""
    return html.escape(tame(text, limit))


def plotted(text: object, limit: int) -> str:
    """For labels of plots, which know a few elements, and variables in braces where they are hovered over.
    They do not know how quotes are escaped, and need not."""
    return html.escape(tame(text, limit), quote=False).replace("%{", "% {")


def number(value: float | None, digits: int = 0) -> str:
    """With thousands separators; a dash where there is none."""
    return "–" if value is None else f"{value:,.{digits}f}"


def sized(count: float) -> str:
    """Bytes as a person reads them."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:,.0f} {unit}" if unit == "B" or count >= 100 else f"{count:,.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def span(seconds: float | None) -> str:
    """A duration in two units at most: `2 h 5 min`, `41 s`, `0.31 s`."""
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
    """To the minute, in the zone it is in."""
    return "–" if at is None else f"{at:%Y-%m-%d %H:%M}"


def many(count: int, noun: str) -> str:
    """`1 message`, `2 messages`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
