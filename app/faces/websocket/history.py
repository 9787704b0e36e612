"""The command `history`: pages of a channel, and its position."""

from __future__ import annotations

from typing import Final

import msgspec

from app.faces.websocket.commands import HistoryRequest, Since
from app.faces.websocket.publications import publication
from app.message.message import encode_message
from subscriptions.domain.channel_epoch import Standing
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import Message
from subscriptions.domain.names import check_channel
from subscriptions.domain.principal import Action, Noun, Principal
from subscriptions.engine.live.beginning import opened_at, standing_of
from subscriptions.engine.live.engine import LiveEngine
from subscriptions.engine.live.starts import AfterSeq
from subscriptions.ports import HistoryPort, HistoryQuery, Place, ReadPort

MAX_HISTORY: Final = 1000

_encode: Final = msgspec.json.Encoder().encode


async def read_history(
    principal: Principal, request: HistoryRequest, live: LiveEngine, read: ReadPort, history: HistoryPort
) -> bytes:
    """The publications asked for, and the position at which the channel stands; no publication lies behind
    that position. Raises `cursor_expired` if `since` is no position of the channel any more."""
    namespace, channel = principal.namespace, check_channel(request.channel)
    principal.require((Action.SUBSCRIBE,), Noun.CHANNEL, (channel,))
    since = request.since or Since()
    place = await read.place_at(namespace, channel, since.offset)
    epoch = live.epoch
    standing = standing_of(AfterSeq(since.offset, since.epoch), epoch, place)
    if request.since is not None and standing is not Standing.HOLDS:
        raise GaplessError(Code.CURSOR_EXPIRED, "this is no position of the channel")
    if not place.channel_id:
        return b'{"publications":[],"epoch":%b,"offset":0}' % _named(epoch, place)
    if request.since is not None and since.offset < place.first_seq - 1 and not request.reverse:
        raise GaplessError(Code.CURSOR_EXPIRED, "messages after this position are gone")
    messages = await _messages(namespace, request, place, history) if request.limit else []
    content = b",".join([publication(m, encode_message) for m in messages if m.seq <= place.last_seq])
    return b'{"publications":[%b],"epoch":%b,"offset":%d}' % (content, _named(epoch, place), place.last_seq)


def _named(epoch: str, place: Place) -> bytes:
    return _encode(str(opened_at(epoch, place.head).epoch))


async def _messages(
    namespace: str, request: HistoryRequest, place: Place, history: HistoryPort
) -> list[Message]:
    """The messages after the position, or before it from the newest on."""
    after, before = (None, None) if request.since is None else (place.id, None)
    if request.reverse:
        after, before = None, after
    limit = MAX_HISTORY if request.limit < 0 else min(request.limit, MAX_HISTORY)
    query = HistoryQuery(
        namespace, request.channel, after, before, None, (), (), limit, ascending=not request.reverse
    )
    return (await history.history(query)).messages
