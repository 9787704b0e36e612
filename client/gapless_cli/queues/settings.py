"""The settings of a subscription as options, and the parsing of their texts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from gapless_cli.failures import usage
from gapless_cli.options import Changes, seconds

SECRET = "GAPLESS_PUSH_SECRET"  # noqa: S105 (the name of a variable)
NONE = "none"

AckWait = Annotated[str | None, typer.Option(help="How long a lease lasts [30s].")]
MaxDeliver = Annotated[int | None, typer.Option(min=0, help="Attempts before a dead letter; 0: no end [5].")]
Backoff = Annotated[str | None, typer.Option(help="Waits after a nack: 1s,5s,30s.")]
MaxInFlight = Annotated[int | None, typer.Option(min=1, help="Unsettled deliveries at a time [1000].")]
Ordering = Annotated[
    Literal["key", "channel", "none"] | None,
    typer.Option(help="One message at a time per key or channel [key]."),
]
MessageTtl = Annotated[str | None, typer.Option(help="Dead letter if unsettled this long.")]
MaxBacklog = Annotated[int | None, typer.Option(min=1, help="Most unsettled; older: dead letters.")]
Retain = Annotated[bool | None, typer.Option("--retain/--no-retain", help="Retention waits for it [no].")]
Expires = Annotated[str | None, typer.Option(help="Remove it if unused this long.")]
DeadLetter = Annotated[
    str | None,
    typer.Option(
        metavar="CHANNEL", help="Also publish dead letters here, such as dead.{channel}; none: off."
    ),
]
DeadLetterKeep = Annotated[
    str | None,
    typer.Option(
        metavar="AGE",
        help="How long they stay in the list of dead letters; none: only those not published there.",
    ),
]
PushUrl = Annotated[str | None, typer.Option(help=f"POST messages here; {SECRET} signs them.")]
PushSecretFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help=f"File with the secret, else {SECRET}.")
]


def options(
    *,
    ack_wait: str | None,
    max_deliver: int | None,
    backoff: str | None,
    max_in_flight: int | None,
    ordering: str | None,
    message_ttl: str | None,
    max_backlog: int | None,
    retain: bool | None,
    expires: str | None,
    types: list[str] | None,
    keys: list[str] | None,
    changes: Changes,
    dead_letter: str | None,
    dead_letter_keep: str | None,
    push_url: str | None,
    push_secret_file: Path | None,
) -> dict[str, Any]:
    """The given options as the client takes them. Raises `Failure` for a bad duration."""
    from gapless import DeadLetterRoute, Filter, Push

    found: dict[str, Any] = {
        "ack_wait": None if ack_wait is None else seconds(ack_wait, "--ack-wait"),
        "max_deliver": max_deliver,
        "backoff": None if backoff is None else [seconds(one, "--backoff") for one in backoff.split(",")],
        "max_in_flight": max_in_flight,
        "ordering": ordering,
        "message_ttl": None if message_ttl is None else seconds(message_ttl, "--message-ttl"),
        "max_backlog": max_backlog,
        "retain": retain,
        "expires": None if expires is None else seconds(expires, "--expires"),
        "filter": Filter(types or (), keys or (), changes or "all") if types or keys or changes else None,
    }
    if dead_letter is not None:
        found["dead_letter"] = DeadLetterRoute(
            None if dead_letter == NONE else dead_letter, _keep(dead_letter_keep)
        )
    elif dead_letter_keep is not None:
        raise usage("--dead-letter-keep goes with --dead-letter")
    if push_url is not None:
        found["push"] = Push(push_url, _secret(push_secret_file))
    elif push_secret_file is not None:
        raise usage("--push-secret-file goes with --push-url")
    return {name: value for name, value in found.items() if value is not None}


def _keep(text: str | None) -> bool | float:
    if text is None:
        return True
    return False if text == NONE else seconds(text, "--dead-letter-keep")


def _secret(file: Path | None) -> str | None:
    """The push secret. It is not an option, because every user of the machine can read command lines."""
    if file is None:
        return os.environ.get(SECRET) or None
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise usage(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from None


def place(text: str) -> int | str:
    """The start; an id becomes a number."""
    return int(text) if text.isascii() and text.isdigit() else text
