"""What the server says over WebSocket, as types: for the documents. Frames are made around stored bytes."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from app.api.answers import Message
from app.api.deliveries import Delivery
from app.api.events import StreamGoodbye, StreamReady
from app.api.markers import Marker
from app.faces.websocket.commands import Command
from app.faces.websocket.consuming import ConsumeRequest, UnconsumeRequest
from app.message.settlement import (
    AckRequest,
    ExtendRequest,
    NackRequest,
    ReleaseRequest,
)


class ClientCommand(Command, forbid_unknown_fields=True):
    """A command: one of its members, and an id that the answer will carry. Empty, it is a pong."""

    consume: ConsumeRequest | UnsetType = UNSET  # type: ignore[assignment]
    unconsume: UnconsumeRequest | UnsetType = UNSET  # type: ignore[assignment]
    ack: AckRequest | UnsetType = UNSET  # type: ignore[assignment]
    nack: NackRequest | UnsetType = UNSET  # type: ignore[assignment]
    release: ReleaseRequest | UnsetType = UNSET  # type: ignore[assignment]
    extend: ExtendRequest | UnsetType = UNSET  # type: ignore[assignment]


class Publication(Message, kw_only=True):
    """A message. `offset` is its seq, or its id in a subscription to several channels; an ephemeral message
    has none, and neither id nor seq."""

    offset: Annotated[int, Meta(ge=1)] | UnsetType = UNSET


class Unsubscribed(Struct):
    """The server ended a subscription. From 2500 on its client subscribes again."""

    code: int
    reason: str


class PushedClient(Struct):
    """A client; without a credential its user is empty."""

    client: str
    user: str


class PushedJoin(Struct):
    """A client joined or left. `channel`: which one, in a subscription to several."""

    info: PushedClient
    channel: str | UnsetType = UNSET


class PushedPresence(Struct):
    """Clients joined or left, too many to be pushed one by one; so many are there now."""

    clients: Annotated[int, Meta(ge=0)]
    channel: str | UnsetType = UNSET


class Push(Struct):
    """Something about a channel: one of the other members."""

    channel: str
    pub: Publication | UnsetType = UNSET
    unsubscribe: Unsubscribed | UnsetType = UNSET
    join: PushedJoin | UnsetType = UNSET
    leave: PushedJoin | UnsetType = UNSET
    presence: PushedPresence | UnsetType = UNSET
    marker: Marker | UnsetType = UNSET
    ready: StreamReady | UnsetType = UNSET
    gap: Annotated[dict[str, Any], Meta(description="As in the event `gap` of a stream.")] | UnsetType = UNSET


class MemberPush(Struct):
    """Something for a member of a durable subscription: one of the other members. After `goodbye` the member
    is ended."""

    subscription: str
    delivery: Delivery | UnsetType = UNSET
    gap: Annotated[dict[str, Any], Meta(description="As in the event `gap` of a stream.")] | UnsetType = UNSET
    goodbye: StreamGoodbye | UnsetType = UNSET


class Pushed(Struct):
    """A push, on a line of its own."""

    push: Push


class MemberPushed(Struct):
    """A push for a member, on a line of its own."""

    push: MemberPush


class CommandError(Struct):
    """Why a command was refused. `temporary`: it may succeed later."""

    code: int
    message: str
    temporary: bool = False


class Reply(Struct):
    """The answer to a command: `error`, or a member with the command's name."""

    id: int
    error: CommandError | UnsetType = UNSET
