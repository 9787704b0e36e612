"""`gapless definitions`: exports and imports channels, subscriptions and policies as one document."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gapless_cli.failures import usage
from gapless_cli.groups import IfMatch, Inner, tag_of, url_of
from gapless_cli.helping import Command, Group
from gapless_cli.options import DEFAULT_URL, Url
from gapless_cli.terminal import printable, shown_json

if TYPE_CHECKING:
    from gapless import Change, Imported

EXAMPLES = """
Examples:

  gapless definitions export > gapless.json
  gapless definitions import gapless.json --dry-run      shows what would change
  gapless definitions import gapless.json
"""
EXPORT_EXAMPLES = """
Examples:

  gapless definitions export > gapless.json
  gapless definitions export | jq '.subscriptions[].name'

The document holds each thing's own settings: no settings of policies or defaults, and no push secrets. Its
etag is printed on stderr. An import with that etag as --if-match fails if anything was changed since.
"""
IMPORT_EXAMPLES = """
Examples:

  gapless definitions import gapless.json --dry-run
  gapless definitions import gapless.json
  gapless definitions export --url http://one:8080 | gapless definitions import - --url http://two:8080

It adds and changes, all or nothing, and never removes. A second import changes nothing. + is new, ~ changed.
"""

app = typer.Typer(cls=Group, rich_markup_mode=None, epilog=EXAMPLES, no_args_is_help=True)


@app.callback(epilog=EXAMPLES)
def definitions(context: typer.Context, url: Url = DEFAULT_URL) -> None:
    """Export all definitions as one document, or import them."""
    context.obj = url


@app.command("export", cls=Command, epilog=EXPORT_EXAMPLES)
def export(context: typer.Context, url: Inner = None) -> None:
    """Print channels, subscriptions and policies with their own settings, as one JSON document."""
    import msgspec

    from gapless_cli.connection import connected
    from gapless_cli.output import until_closed

    with connected(url_of(context, url)) as client:
        document = client.definitions.export()
    if document.etag is not None:
        typer.echo(f"etag {document.etag}", err=True)
    with until_closed():
        print(shown_json(msgspec.json.format(msgspec.json.encode(document), indent=2)).decode())


@app.command("import", cls=Command, epilog=IMPORT_EXAMPLES)
def import_(
    context: typer.Context,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="The document; - is stdin.", show_default=False)
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would change; change nothing.")
    ] = False,
    if_match: IfMatch = None,
    as_json: Annotated[bool, typer.Option("--json", help="The whole answer as JSON on one line.")] = False,
    url: Inner = None,
) -> None:
    """Add and change definitions until they match a document, and print the changes."""
    from gapless_cli.connection import connected
    from gapless_cli.output import until_closed, write_line
    from gapless_cli.queues.shapes import imported_json

    document = _document(file)
    with connected(url_of(context, url)) as client:
        imported = client.definitions.import_(document, dry_run=dry_run, if_match=tag_of(if_match))
    with until_closed():
        if as_json:
            write_line(imported_json(imported))
        else:
            print("\n".join(map(printable, readable(imported))))


def readable(imported: Imported) -> Iterator[str]:
    """The changes, one line for each setting, and a last line with their number."""
    for change in imported.diff:
        yield from _change(change)
    would = "would be " if imported.dry_run else ""
    counts = {"created": len(imported.created), "updated": len(imported.updated)}
    told = [f"{count} {would}{word}" for word, count in counts.items()]
    yield ", ".join([*told, f"{imported.unchanged} unchanged"])


def _change(change: Change) -> Iterator[str]:
    yield f"{'+' if change.before is None else '~'} {change.kind} {change.name}"
    before, after = change.before or {}, change.after
    for name in [*after, *(name for name in before if name not in after)]:
        old, new = _text(before, name), _text(after, name)
        if change.before is None:
            yield f"    {name}: {new}"
        elif old != new:
            yield f"    {name}: {old} -> {new}"


def _text(settings: Mapping[str, Any], name: str) -> str:
    import msgspec

    return msgspec.json.encode(settings[name]).decode() if name in settings else "not set"


def _document(file: str) -> dict[str, Any]:
    from gapless_cli.new_message import parse

    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
    except OSError as error:
        raise usage(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise usage(f"{file} is not UTF-8") from None
    document = parse(text, "stdin" if file == "-" else file)
    if not isinstance(document, dict):
        raise usage(f"{file} holds no document: an object with channels, subscriptions, policies")
    return document
