"""What a message says about an earlier one of its channel: it updates or deletes it, or replies to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from app.message.message import change_text
from subscriptions.domain.errors import Code, GaplessError, invalid
from subscriptions.domain.model import MAX_ID, Change, NewMessage
from subscriptions.domain.principal import Action, Noun, Principal

Target = Annotated[int, Meta(ge=1, le=MAX_ID, description="The id of an earlier message of the channel.")]
Doing = Annotated[
    Literal["update", "delete", "reply"],
    Meta(description="What it does to its target: gives it other data, hides it, or answers it."),
]
NOTHING: Final = b"null"
"""The data of a deletion that has none."""


def change_of(
    target: int | UnsetType | None, action: str | UnsetType | None, beside: Iterable[str]
) -> Change | None:
    """What a message to publish does to its target. `beside`: members that a change cannot have and this one
    has. Raises `invalid_request`."""
    if target is UNSET or target is None:
        if action is UNSET or action is None:
            return None
        raise invalid("target", "is required with action")
    if action is UNSET or action is None:
        raise invalid("action", "is required with target")
    for name in beside:
        raise invalid(name, "cannot be given together with target")
    return Change(change_text(target, action))


def with_version(
    messages: Sequence[NewMessage], is_array: bool, version: int | None
) -> tuple[NewMessage, ...]:
    """The messages of a request with this `Expected-Version`. Raises `invalid_request`."""
    if version is None:
        return tuple(messages)
    change = messages[0].change
    if is_array or change is None:
        raise GaplessError(
            Code.INVALID_REQUEST, "Expected-Version speaks of one message with a target", status=400
        )
    return (messages[0]._replace(change=change._replace(version=version)),)


def moderated(who: Principal, messages: Sequence[NewMessage]) -> tuple[NewMessage, ...]:
    """The same messages, as `who` may send them: a moderator of a channel changes what others have sent."""
    return tuple([_as_sent(who, message) if message.change else message for message in messages])


def _as_sent(who: Principal, message: NewMessage) -> NewMessage:
    assert message.change is not None
    if not who.may((Action.MODERATE,), Noun.CHANNEL, message.channel):
        return message
    return message._replace(change=message.change._replace(moderates=True))
