"""The findings for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from gapless_cli.terminal import printable
from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.cli.doctor.check import Check, Word
from app.cli.doctor.settings import Setting

_COLOURS = {Word.OK: "green", Word.WARN: "yellow", Word.FAIL: "red"}


def as_json(checks: Sequence[Check], settings: Sequence[Setting]) -> str:
    """`{"ok", "checks", "settings"}`."""
    value = {
        "ok": is_sound(checks),
        "checks": [asdict(check) for check in checks],
        "settings": [asdict(setting) for setting in settings],
    }
    return json.dumps(value, indent=2)


def is_sound(checks: Sequence[Check]) -> bool:
    """Whether nothing fails; warnings are for people."""
    return all(check.word is not Word.FAIL for check in checks)


def print_all(checks: Sequence[Check], settings: Sequence[Setting]) -> None:
    """Tables on a terminal, the same text without colours elsewhere."""
    console = Console(soft_wrap=True, highlight=False)
    width = max(len(check.name) for check in checks)
    for check in checks:
        colour = _COLOURS[check.word]
        console.print(f"[{colour}]{check.word:<4}[/]  {check.name:<{width}}  ", end="")
        console.print(printable(check.detail), markup=False)
        if check.advice is not None and check.word is not Word.OK:
            console.print(f"{'':<{width + 8}}→ {printable(check.advice)}", markup=False)
    console.print()
    _print_settings(console, settings)
    failed = sum(check.word is Word.FAIL for check in checks)
    warned = sum(check.word is Word.WARN for check in checks)
    console.print(f"\n{failed} failed, {warned} to look at, {len(checks) - failed - warned} fine")


def _print_settings(console: Console, settings: Sequence[Setting]) -> None:
    table = Table("setting", "value", "from", box=None, pad_edge=False, header_style="bold")
    for setting in settings:
        table.add_row(*(Text(printable(text)) for text in (setting.name, setting.value, setting.source)))
    console.print(table)
