"""`gapless definitions`: channels, subscriptions and policies as one document."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.failures import usage
from app.cli.groups import Inner, url_of
from app.cli.helping import Command, Group
from app.cli.options import DEFAULT_URL, Url
from app.cli.terminal import printable, shown_json

if TYPE_CHECKING:
    from gapless import Change, Imported

EXAMPLES = """
Examples:

  gapless definitions export > gapless.json
  gapless definitions import gapless.json --dry-run      what would change
  gapless definitions import gapless.json
"""
EXPORT_EXAMPLES = """
Examples:

  gapless definitions export > gapless.json
  gapless definitions export | jq '.subscriptions[].name'

Only what was set is in it, nothing of policies or defaults, and no secret of a push.
"""
IMPORT_EXAMPLES = """
Examples:

  gapless definitions import gapless.json --dry-run
  gapless definitions import gapless.json
  gapless definitions export --url http://one:8080 | gapless definitions import - --url http://two:8080

Adds and changes, never removes, all of it or nothing. A second time changes nothing. + is new, ~ is changed.
"""

app = typer.Typer(cls=Group, rich_markup_mode=None, epilog=EXAMPLES, no_args_is_help=True)


@app.callback(epilog=EXAMPLES)
def definitions(context: typer.Context, url: Url = DEFAULT_URL) -> None:
    """Take everything that was defined out, or bring it in."""
    context.obj = url


@app.command("export", cls=Command, epilog=EXPORT_EXAMPLES)
def export(context: typer.Context, url: Inner = None) -> None:
    """Print channels, subscriptions and policies with their own settings, as one JSON document."""
    import msgspec

    from app.cli.connection import connected
    from app.cli.output import until_closed

    with connected(url_of(context, url)) as client:
        document = client.export_definitions()
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
    as_json: Annotated[bool, typer.Option("--json", help="The whole answer as JSON on one line.")] = False,
    url: Inner = None,
) -> None:
    """Add and change until all of a document is there, and say what that changed."""
    from app.cli.connection import connected
    from app.cli.output import until_closed, write_line
    from app.cli.queues.shapes import imported_json

    document = _document(file)
    with connected(url_of(context, url)) as client:
        imported = client.import_definitions(document, dry_run=dry_run)
    with until_closed():
        if as_json:
            write_line(imported_json(imported))
        else:
            print("\n".join(map(printable, readable(imported))))


def readable(imported: Imported) -> Iterator[str]:
    """What changed, a line for each setting, and a last line that counts."""
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
    from app.cli.publish import parse

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
