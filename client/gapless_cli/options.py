"""Options that several commands share, and the parsing of their texts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Literal

import typer

from gapless_cli.failures import usage
from gapless_cli.limits import MAX_ID

DEFAULT_URL = ""
"""No address was given: the callback of `Url` finds it."""


class Local:
    """The address of this machine's server, used when none is given. The service's own command line replaces
    the default: it reads the service's settings."""

    find: Callable[[], str] = staticmethod(lambda: "http://127.0.0.1:8080")


def _found_out(url: str) -> str:
    return url or Local.find()


Url = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="GAPLESS_URL",
        help="Address of the server. GAPLESS_TOKEN or GAPLESS_TOKEN_FILE: the token.",
        callback=_found_out,
        show_default="where serve listens by the settings here",
    ),
]
Types = Annotated[list[str] | None, typer.Option("--type", help="Only this type; may be repeated.")]
Keys = Annotated[list[str] | None, typer.Option("--key", help="Only this key; may be repeated.")]
Changes = Annotated[
    Literal["all", "none", "only"] | None,
    typer.Option(help="Messages that change others: with the rest, not at all, or alone [all]."),
]
After = Annotated[int | None, typer.Option("--after", min=0, max=MAX_ID, help="Only messages after this id.")]
Since = Annotated[
    str | None, typer.Option("--since", help="Only from this time on: RFC 3339, or an age: 10m, 2h, 1d.")
]

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw]|)", re.ASCII)


def seconds(text: str, option: str) -> float:
    """A duration such as `90`, `12h`, `7d` or `1h30m`, in seconds. Raises `Failure` about the option."""
    parts = _PART.findall(text.strip())
    written = "".join(number + unit for number, unit in parts)
    if not parts or written != text.strip() or (len(parts) > 1 and not all(unit for _, unit in parts)):
        raise usage(f"{option} {text!r} is no duration: write 90 (seconds), 30s, 10m, 12h, 7d or 1h30m")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def whole_seconds(text: str, option: str) -> int:
    """A duration in whole seconds, at least one. Raises `Failure` about the option."""
    value = seconds(text, option)
    if value < 1 or value != int(value):
        raise usage(f"{option} {text!r} must be whole seconds, at least one")
    return int(value)


def pairs(texts: list[str] | None, option: str) -> dict[str, str] | None:
    """`name=value` texts as a mapping. Raises `Failure` for a text without `=` or a name given twice."""
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise usage(f"{option} {text!r} must be name=value")
        if name in found:
            raise usage(f"{option} {name} is given twice")
        found[name] = value
    return found or None
