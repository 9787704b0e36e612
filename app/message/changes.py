"""What a message says about an earlier one of its channel: it updates or deletes it, or replies to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal, NamedTuple

from msgspec import UNSET, Meta, UnsetType

from app.message.message import change_text
from subscriptions.domain.errors import Code, GaplessError, invalid
from subscriptions.domain.model import MAX_ID, Change, NewMessage
from subscriptions.domain.principal import Action, Noun, Principal

Target = Annotated[int, Meta(ge=1, le=MAX_ID, description="The id of an earlier message of the channel.")]
Through = Annotated[
    int,
    Meta(ge=1, le=MAX_ID, description="With delete: every original from the target to this id is hidden."),
]
Doing = Annotated[
    Literal["update", "delete", "reply", "annotate"],
    Meta(description="What it does to its target: gives it other data, hides it, answers or annotates it."),
]
MAX_ANNOTATION_CHARACTERS: Final = 64
Annotation = Annotated[
    str,
    Meta(min_length=1, max_length=MAX_ANNOTATION_CHARACTERS, description="The name of an annotation."),
]
Mode = Annotated[
    Literal["total", "distinct", "unique", "flag"],
    Meta(
        description="How annotations count: each, one a sender and name, the last one of a sender, or whether"
        " there is any."
    ),
]
Member = UnsetType | None
_MAY_PUBLISH: Final = (Action.PUBLISH,)
_MAY_EDIT: Final = (Action.PUBLISH, Action.MODERATE)
_MAY_MODERATE: Final = (Action.MODERATE,)
NOTHING: Final = b"null"
"""The data of a deletion that has none."""


class Asked(NamedTuple):
    """The members of a message to publish that say what it changes."""

    target: int | Member
    action: str | Member
    through: int | Member
    annotation: str | Member
    mode: str | Member
    remove: bool | Member


def change_of(asked: Asked, channel: str, who: Principal) -> Change | None:
    """What a message that `who` publishes to `channel` does to its target. A moderator of the channel changes
    what others have sent. Raises `invalid_request`."""
    target, action = asked.target, asked.action
    if target is UNSET or target is None:
        for name, value in asked._asdict().items():
            if value is not UNSET and value is not None:
                raise invalid("target", f"is required with {name}")
        return None
    if action is UNSET or action is None:
        raise invalid("action", "is required with target")
    through = None if asked.through is UNSET else asked.through
    if through is not None and action != "delete":
        raise invalid("through", "is for delete")
    if through is not None and through < target:
        raise invalid("through", "must not be before the target")
    if action == "annotate":
        return Change(_annotation(target, asked), None, who.may(_MAY_MODERATE, Noun.CHANNEL, channel))
    if not asked.annotation is asked.mode is asked.remove is UNSET:
        for name, value in zip(asked._fields[3:], asked[3:], strict=True):
            if value is not UNSET and value is not None:
                raise invalid(name, "is for annotate")
    return Change(change_text(target, action, through), None, who.may(_MAY_MODERATE, Noun.CHANNEL, channel))


def _annotation(target: int, asked: Asked) -> bytes:
    name, mode = asked.annotation, asked.mode
    if name is UNSET or name is None:
        raise invalid("annotation", "is required to annotate")
    if mode is UNSET or mode is None:
        raise invalid("mode", "is required to annotate")
    if not name.isprintable():
        raise invalid("annotation", "has characters that cannot be shown")
    return change_text(target, "annotate", None, name, mode, remove=asked.remove is True)


def with_version(messages: Sequence[NewMessage], is_array: bool, version: int) -> tuple[NewMessage, ...]:
    """The messages of a request with this `Expected-Version`. Raises `invalid_request`."""
    change = messages[0].change
    if is_array or change is None:
        raise GaplessError(
            Code.INVALID_REQUEST, "Expected-Version speaks of one message with a target", status=400
        )
    return (messages[0]._replace(change=change._replace(version=version)),)


def check_sendable(who: Principal, messages: tuple[NewMessage, ...]) -> None:
    """Refuse messages that `who` may not send. A moderator of a channel changes what others have sent, and
    need not be a publisher for that; and sends in the name of others. Raises `forbidden`."""
    if who.grants is None:
        return
    for message in messages:
        is_edit = message.change is not None and message.change.is_edit
        who.require(_MAY_EDIT if is_edit else _MAY_PUBLISH, Noun.CHANNEL, (message.channel,))
        if message.sender != who.subject:
            who.require(_MAY_MODERATE, Noun.CHANNEL, (message.channel,))
