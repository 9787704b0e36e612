"""The commands of the client protocol: their forms, and how they are read.

Source: `client.proto` of the Centrifugo protocol, in its JSON form: one command on a line, several lines in a
message. Members that are extensions of Gapless say so.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from app.http.parameters import MAX_LAST
from app.message import limits
from app.message.limits import MAX_FILTERS
from app.message.publish import AddressedMessage
from app.message.times import MAX_MOMENT_CHARACTERS, SINCE_PATTERN
from subscriptions.domain.errors import invalid
from subscriptions.domain.names import MAX_NAME_CHARACTERS
from subscriptions.domain.selection import MAX_CHANNELS, Changes

MAX_COMMANDS: Final = 1000
"""Commands in one message."""
MAX_COMMAND_ID: Final = 2**32 - 1
_Offset = Annotated[int, Meta(ge=0, le=2**53)]
_Text = Annotated[str, Meta(max_length=4096)]
_Channel = Annotated[str, Meta(extra_json_schema={"maxLength": MAX_NAME_CHARACTERS})]
"""A channel, or what its client calls a selection. Checked by whoever uses it: a longer one is no malformed
command, and the others of its message are carried out."""
_Names = Annotated[list[limits.Name], Meta(extra_json_schema={"minItems": 1, "maxItems": MAX_CHANNELS})]
_Types = Annotated[list[limits.Type], Meta(extra_json_schema={"maxItems": MAX_FILTERS})]
_Keys = Annotated[list[limits.Key], Meta(extra_json_schema={"maxItems": MAX_FILTERS})]
_Last = Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": MAX_LAST})]
_Moment = Annotated[
    str, Meta(extra_json_schema={"pattern": SINCE_PATTERN, "maxLength": MAX_MOMENT_CHARACTERS})
]


class SelectionRequest(Struct, forbid_unknown_fields=True):
    """Extension: several channels and patterns as one subscription, filters, and where it begins.

    At most one of `last`, `since` and `from` is given. They are those of a stream of events. `recover` wins
    over them, as `Last-Event-ID` does there.
    """

    channel: _Names
    type: _Types = []
    key: _Keys = []
    changes: Changes = "all"
    last: _Last | UnsetType = UNSET
    since: _Moment | UnsetType = UNSET
    start: Literal["earliest", "latest"] | UnsetType = msgspec.field(name="from", default=UNSET)


class SubscribeRequest(Struct):
    """Follow a channel. `recover`: go on after `offset`, which is a position of the channel named by `epoch`.

    `join_leave`: joins and leaves are pushed. `markers` (an extension): markers that move are pushed. A
    pattern, and a `selection`, are followed in the order of ids: their offset is an id.
    """

    channel: _Channel = ""
    token: _Text = ""
    recover: bool = False
    epoch: _Text = ""
    offset: _Offset = 0
    flag: int = 0
    join_leave: bool = False
    markers: bool = False
    selection: SelectionRequest | None = None
    tf: msgspec.Raw | UnsetType = UNSET
    """A filter by tags. It is refused, since a client whose filter is ignored gets what it does not want."""


class ConnectRequest(Struct):
    """Comes first. `subs` are subscriptions that begin with the connection."""

    token: _Text = ""
    subs: Annotated[dict[str, SubscribeRequest], Meta(extra_json_schema={"maxProperties": MAX_CHANNELS})] = {}
    name: _Text = ""
    version: _Text = ""


class ChannelRequest(Struct):
    """A command about one channel that needs no more than its name."""

    channel: _Channel


class Since(Struct):
    """A position in a channel."""

    offset: _Offset = 0
    epoch: _Text = ""


class HistoryRequest(Struct):
    """Read a channel. Without `limit` only the position is asked for; below 0 it is the most there can be."""

    channel: _Channel
    limit: int = 0
    since: Since | None = None
    reverse: bool = False


class TokenRequest(Struct):
    """A new token."""

    token: _Text = ""
    channel: Annotated[str, Meta(max_length=MAX_NAME_CHARACTERS)] = ""


Body = Annotated[msgspec.Raw, Meta(description="As the body of the HTTP request of this name.")]
"""A command that is read like a body, by the same rules."""


class Nothing(Struct):
    """A command whose members do not matter."""


class Command(Struct, forbid_unknown_fields=True):
    """A command: one of its members, and an id that the answer will carry. Empty, it is a pong."""

    id: Annotated[int, Meta(ge=0, le=MAX_COMMAND_ID)] | UnsetType = UNSET
    connect: ConnectRequest | UnsetType = UNSET
    subscribe: SubscribeRequest | UnsetType = UNSET
    unsubscribe: ChannelRequest | UnsetType = UNSET
    publish: AddressedMessage | UnsetType = UNSET
    presence: ChannelRequest | UnsetType = UNSET
    presence_stats: ChannelRequest | UnsetType = UNSET
    history: HistoryRequest | UnsetType = UNSET
    ping: Nothing | UnsetType = UNSET
    send: Nothing | UnsetType = UNSET
    rpc: Nothing | UnsetType = UNSET
    refresh: TokenRequest | UnsetType = UNSET
    sub_refresh: TokenRequest | UnsetType = UNSET
    consume: Body | UnsetType = UNSET
    unconsume: Body | UnsetType = UNSET
    ack: Body | UnsetType = UNSET
    nack: Body | UnsetType = UNSET
    release: Body | UnsetType = UNSET
    extend: Body | UnsetType = UNSET


METHODS: Final = tuple(name for name in Command.__struct_fields__ if name != "id")
_decode: Final = msgspec.json.Decoder(Command).decode
_LEADING_ID: Final = re.compile(rb'\s*+\{\s*+"id"\s*+:\s*+([0-9]{1,10})\s*+[,}]')


def read_command(line: bytes) -> Command:
    """Raises msgspec.DecodeError, UnicodeDecodeError or RecursionError."""
    return _decode(line)


def method_of(command: Command) -> str:
    """The name of the member that is set; empty if none is. If several are, the first one."""
    for name in METHODS:
        if getattr(command, name) is not UNSET:
            return name
    return ""


def id_of(line: bytes) -> int:
    """The id of a command that cannot be decoded; 0 unless it begins with its id, as clients write it."""
    found = _LEADING_ID.match(line)
    return int(found[1]) if found is not None and int(found[1]) <= MAX_COMMAND_ID else 0


def split(message: bytes) -> list[bytes] | None:
    """The commands of a message: every line is one, but for empty ones. None if they are more than
    `MAX_COMMANDS`, or the lines more than twice as many."""
    if message.count(b"\n") > 2 * MAX_COMMANDS:
        return None
    commands = [line for line in message.split(b"\n") if line.strip()]
    return commands if len(commands) <= MAX_COMMANDS else None


def check_name(text: str) -> str:
    """Refuse a name that no push should repeat. Raises `invalid_request`."""
    if len(text) > MAX_NAME_CHARACTERS:
        raise invalid("channel", f"is longer than {MAX_NAME_CHARACTERS} characters")
    limits.check_printable(text, "channel")
    return text
