"""Turns a seq at which a reader of one channel wants to go on into a cursor."""

from __future__ import annotations

from dataclasses import dataclass

from subscriptions.domain.channel_epoch import ChannelEpoch, Standing, judge, parse_channel_epoch
from subscriptions.domain.selection import Selection
from subscriptions.engine.live.feed import ChannelFeed
from subscriptions.engine.live.live_subscription import Gap
from subscriptions.engine.live.starts import After, AfterSeq, Carried, Opened, Start
from subscriptions.ports import Head, Place, ReadPort


@dataclass(frozen=True, slots=True)
class Begin:
    """Where a reader begins: its cursor, the id up to which there is history, the channels' own starts (for
    `last`), and the cursor that the client sent, if it is not settled. `opened` is its beginning as a seq.
    `gap` is sent before all else."""

    cursor: int
    latest: int
    starts: dict[int, int] | None = None
    carried: Carried | None = None
    opened: Opened | None = None
    gap: Gap | None = None


def opened_at(epoch: str, head: Head, *, holds: bool = True) -> Opened:
    """At the head of a channel. If the channel does not exist: before its first message."""
    if head.channel_id:
        return Opened(ChannelEpoch(epoch, head.channel_id), head.last_seq, holds)
    return Opened(ChannelEpoch(epoch, 0, head.unborn_at), 0, holds)


async def carry(read: ReadPort, selection: Selection, start: Start, settled: int) -> Carried | None:
    """Describe a cursor that is not settled. It may come from a reader of other channels or from a publish:
    messages that are committed at or below it from here on were never read."""
    if not isinstance(start, After) or start.cursor <= settled:
        return None
    above = await read.heads_above(selection, settled) if selection.single is None else {}
    return Carried(start.cursor, settled, above)


async def after_seq(read: ReadPort, feed: ChannelFeed, head: Head, start: AfterSeq, epoch: str) -> Begin:
    """Go on after a seq, if it is a position of this channel. If it is none, begin at the head, and if the
    channel was created again, at its first message: `Opened.holds` tells the reader.

    `head` was read for this call, and `epoch` is the log's.
    """
    name = feed.channel
    place = await read.place_at(feed.selection.namespace, name, start.seq)
    standing = standing_of(start, epoch, place)
    # If the channel was created again, the feed has to know before this reader takes anything from it.
    feed.swept(place.head)
    if not place.channel_id:
        opened = opened_at(epoch, place.head, holds=standing is Standing.HOLDS)
        return Begin(0, head.last_id, opened=opened)
    if standing is Standing.UNKNOWN:
        return Begin(head.last_id, head.last_id, opened=opened_at(epoch, head, holds=False))
    remade = standing is Standing.REMADE
    seq, cursor, gap = (0, 0, None) if remade else (start.seq, place.id, None)
    missed = place.first_seq - 1 - seq
    if missed > 0:
        gap = Gap(name, place.first_seq, missed)
        seq, cursor = place.first_seq - 1, place.trimmed_id
    opened = Opened(ChannelEpoch(epoch, place.channel_id), seq, holds=not remade and gap is None)
    return Begin(cursor, max(head.last_id, place.last_id), opened=opened, gap=gap)


def standing_of(start: AfterSeq, epoch: str, place: Place) -> Standing:
    """What this position is worth in a log of this epoch; `place` is what was found there."""
    named = parse_channel_epoch(start.epoch)
    if named is None and start.epoch:
        return Standing.UNKNOWN
    return judge(named, start.seq, epoch, place.channel_id, place.last_seq, place.deletion_id)
