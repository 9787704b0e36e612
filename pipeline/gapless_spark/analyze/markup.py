"""Pieces of the page. All arguments are plain text, except those named `html…`, which are markup."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gapless_spark.analyze.findings import Row
from gapless_spark.analyze.text import escaped, number


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: its heading, and how a row's value is shown. `bar` is the field whose share of
    the largest value is shaded."""

    title: str
    show: Callable[[Row], str]
    bar: str | None = None


def named(title: str, key: str) -> Column:
    """A column of untrusted names: shortened, with more of the name in the tooltip."""

    def show(row: Row) -> str:
        return f'<span title="{escaped(row[key], 300)}">{escaped(row[key])}</span>'

    return Column(title, show)


def counted(title: str, key: str, digits: int = 0, bar: bool = False) -> Column:
    return Column(title, lambda row: number(row[key], digits), key if bar else None)


def shown(title: str, key: str, how: Callable[[Any], str]) -> Column:
    return Column(title, lambda row: html.escape(how(row[key])))


def table(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """A table, which scrolls sideways if it does not fit."""
    largest: dict[str | None, float] = {
        c.bar: max((row[c.bar] or 0 for row in rows), default=0) for c in columns if c.bar
    }
    head = "".join(f'<th scope="col">{html.escape(column.title)}</th>' for column in columns)
    body = "".join("<tr>" + "".join(_cell(c, row, largest) for c in columns) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(column: Column, row: Row, largest: dict[str | None, float]) -> str:
    if column.bar and largest[column.bar]:
        share = 100 * (row[column.bar] or 0) / largest[column.bar]
        return f'<td class="bar" style="--share: {share:.1f}%">{column.show(row)}</td>'
    return f"<td>{column.show(row)}</td>"


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Large numbers with their names. `pairs`: (number, name)."""
    inside = "".join(
        f'<div class="fact"><b>{html.escape(value)}</b><span>{html.escape(name)}</span></div>'
        for value, name in pairs
    )
    return f'<div class="cards">{inside}</div>'


def card(title: str, note: str, *html_parts: str) -> str:
    return (
        f'<section class="card"><h3>{html.escape(title)}</h3>'
        f'<p class="note">{html.escape(note)}</p>{"".join(html_parts)}</section>'
    )


def chart(figure: str, title: str, height: int) -> str:
    """The place of a plot, with its height reserved, so that nothing moves when it is drawn."""
    return (
        f'<div class="chart" data-figure="{html.escape(figure)}" role="img" '
        f'aria-label="{html.escape(title)}" style="min-height: {height}px"></div>'
    )


def numbers(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """The numbers of a plot, as a table that opens on demand."""
    return f"<details><summary>Numbers</summary>{table(rows, columns)}</details>"


def pair(*html_parts: str) -> str:
    return f'<div class="pair">{"".join(html_parts)}</div>'


def chapter(anchor: str, title: str, *html_parts: str) -> str:
    return f'<h2 id="{html.escape(anchor)}">{html.escape(title)}</h2>{"".join(html_parts)}'
