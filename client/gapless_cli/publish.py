"""`gapless publish`: publishes one message, or one for each line of stdin."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gapless_cli.failures import usage
from gapless_cli.new_message import Settings, parse
from gapless_cli.options import DEFAULT_URL, Url, pairs, seconds

if TYPE_CHECKING:
    from gapless import Published, Scheduled

EXAMPLES = """
Examples:

  gapless publish chat.lobby '{"text": "hello"}' --key user-7
  gapless publish chat.lobby "hello" --text --header lang=en --ttl 1h
  echo '{"n": 1}' | gapless publish numbers
  tail -f app.log | gapless publish logs.app --lines --text
  gapless publish pictures --binary cat.png --type image/png
  gapless publish orders '{"n": 17}' --expected-last-seq 16    only if 16 is still the last seq
  gapless publish mails '{"to": "ann"}' --delay 1h             in an hour; see gapless scheduled
  gapless publish mails '{"to": "ann"}' --deliver-at 2030-01-01T09:00:00+01:00
  gapless publish chat.lobby '{"text": "hi"}' --target 1042 --action update
  gapless publish chat.lobby --target 1042 --action delete     see gapless history --view latest
  gapless publish chat.lobby --target 1042 --action annotate --annotation like --mode distinct
  gapless publish chat.lobby '{"text": "welcome"}' --sender ann   with a key that may moderate
"""


def publish(
    channel: Annotated[
        str, typer.Argument(metavar="CHANNEL", help="Its first message creates it.", show_default=False)
    ],
    data: Annotated[
        str | None, typer.Argument(metavar="DATA", help="JSON; - or none: from stdin.", show_default=False)
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="DATA is text, not JSON.")] = False,
    lines: Annotated[bool, typer.Option("--lines", help="One message for each line of stdin.")] = False,
    binary: Annotated[str | None, typer.Option(metavar="FILE", help="Publish a file's bytes.")] = None,
    type_: Annotated[str | None, typer.Option("--type", help="Message type [message].")] = None,
    key: Annotated[str | None, typer.Option(help="Message key.")] = None,
    header: Annotated[list[str] | None, typer.Option(help="name=value; may be repeated.")] = None,
    sender: Annotated[str | None, typer.Option(help="In whose name: for moderators.")] = None,
    ttl: Annotated[str | None, typer.Option(help="Expires after: 90 (seconds), 30s, 7d.")] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="Store it once per day and key.")] = None,
    expected_last_seq: Annotated[int | None, typer.Option(min=0, help="If this is the last seq.")] = None,
    ephemeral: Annotated[bool, typer.Option("--ephemeral", help="Only for listeners; not stored.")] = False,
    delay: Annotated[str | None, typer.Option(help="Publish it after: 30s, 2h.")] = None,
    deliver_at: Annotated[str | None, typer.Option(help="Publish it at this time: RFC 3339.")] = None,
    target: Annotated[int | None, typer.Option(min=1, help="The id of a message that it changes.")] = None,
    action: Annotated[
        Literal["update", "delete", "reply", "annotate"] | None, typer.Option(help="What it does to it.")
    ] = None,
    through: Annotated[int | None, typer.Option(min=1, help="Delete all from the target to this id.")] = None,
    annotation: Annotated[str | None, typer.Option(help="The name of the annotation.")] = None,
    mode: Annotated[
        Literal["total", "distinct", "unique", "flag"] | None, typer.Option(help="How it counts.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take the annotation back.")] = False,
    expected_version: Annotated[
        int | None, typer.Option(min=0, help="If this changed the target last.")
    ] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Publish to a channel. Once the message is committed, print its place as JSON on one line."""
    expires_after = None if ttl is None else seconds(ttl, "--ttl")
    settings = Settings(type_, key, pairs(header, "--header"), sender, expires_after, ephemeral)
    conditions = {
        "idempotency_key": idempotency_key,
        "expected_last_seq": expected_last_seq,
        "expected_version": expected_version,
    }
    change = {"target": target, "action": action, "through": through, "annotation": annotation, "mode": mode}
    change["remove"] = remove or None
    changed = {name: value for name, value in change.items() if value is not None}
    given = {name: value for name, value in conditions.items() if value is not None}
    times = {"delay": None if delay is None else seconds(delay, "--delay"), "deliver_at": deliver_at}
    later = {name: value for name, value in times.items() if value is not None}
    _refuse_odd_mixtures(settings, data, text, lines, binary, given)
    _refuse_odd_times(settings, lines, given, later)
    if changed and (target is None or action is None):
        raise usage("--target ID and --action come together, and the rest about a change goes with them")
    if changed and (lines or settings.ephemeral):
        raise usage("a change is one stored message: without --lines and --ephemeral")
    if lines:
        from gapless_cli.publish_lines import publish_lines

        publish_lines(url, channel, settings, text)
    else:
        bare = action in ("delete", "annotate") and data is None and binary is None
        payload = None if bare else _payload(data, text, binary)
        _publish_one(url, channel, payload, settings, given | later | changed)


def _refuse_odd_mixtures(
    settings: Settings, data: str | None, text: bool, lines: bool, binary: str | None, given: dict[str, Any]
) -> None:
    if binary is not None and (data is not None or text or lines):
        raise usage("--binary FILE stands alone: without DATA, --text and --lines")
    if lines and data not in (None, "-"):
        raise usage("--lines reads the messages from stdin: leave DATA out")
    if lines and given:
        raise usage("--idempotency-key and --expected-last-seq are for one message, not for --lines")
    if settings.ephemeral and (given or settings.ttl is not None):
        raise usage("an --ephemeral message is not stored: no key to remember, no place, no --ttl")


def _refuse_odd_times(settings: Settings, lines: bool, given: dict[str, Any], later: dict[str, Any]) -> None:
    if len(later) > 1:
        raise usage("--delay and --deliver-at both say when: give one of them")
    if later and (lines or settings.ephemeral or "expected_last_seq" in given):
        odd = "--lines, --ephemeral or --expected-last-seq"
        raise usage(f"--delay and --deliver-at are for one stored message: they do not go with {odd}")


def _publish_one(url: str, channel: str, payload: Any, settings: Settings, given: dict[str, Any]) -> None:
    from gapless_cli.connection import connected
    from gapless_cli.output import until_closed, write_line

    with until_closed(), connected(url) as client:
        if settings.ephemeral:
            client.publish(channel, payload, ephemeral=True, **settings.options)
            write_line({"channel": channel, "ephemeral": True})
        else:
            answer = client.publish(channel, payload, ttl=settings.ttl, **settings.options, **given)
            write_line(_answer(answer))


def _answer(answer: Published | Scheduled) -> dict[str, Any]:
    from gapless import Scheduled
    from gapless_cli.output import published_json
    from gapless_cli.queues.shapes import scheduled_json

    return scheduled_json(answer) if isinstance(answer, Scheduled) else published_json(answer)


def _payload(data: str | None, text: bool, binary: str | None) -> Any:
    if binary is not None:
        return _bytes_of(binary)
    where, advice = "DATA", "; --text publishes it as it is"
    if data in (None, "-"):
        where, data = "stdin", _stdin_text()
        if len(data.splitlines()) > 1:
            advice = "; --lines publishes one message for each line"
    assert data is not None
    return data.removesuffix("\n") if text else parse(data, where, advice)


def _stdin_text() -> str:
    if sys.stdin.isatty():
        print("reading the message from the terminal; end it with Ctrl-D", file=sys.stderr)
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise usage(f"stdin is not UTF-8 ({error.reason} at byte {error.start}); see --binary -") from None


def _bytes_of(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise usage(f"cannot read {file}: {error.strerror}") from None
