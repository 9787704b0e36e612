"""Names one channel in one history of the log, so that a seq of it can be told from another channel's.

A seq is a position only together with such a name: seqs begin at 1 again when a channel is deleted and
created again, and mean something else after the log's history has changed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

_FORM: Final = re.compile(r"(?P<epoch>[0-9a-f-]{1,64})(?:\.(?P<unborn>~?)(?P<number>[0-9]{1,18}))?")


@dataclass(frozen=True, slots=True)
class ChannelEpoch:
    """The log's epoch with the channel's id. If the channel did not exist yet, `channel_id` is 0: it is the
    first channel of its name that is not deleted up to the id `unborn_at`."""

    epoch: str
    channel_id: int = 0
    unborn_at: int | None = None

    def __str__(self) -> str:
        if self.unborn_at is not None:
            return f"{self.epoch}.~{self.unborn_at}"
        return f"{self.epoch}.{self.channel_id}" if self.channel_id else self.epoch


def parse_channel_epoch(text: str) -> ChannelEpoch | None:
    """What `str` made of one; None if the text is nothing of this kind."""
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    if found["number"] is None:
        return ChannelEpoch(found["epoch"])
    number = int(found["number"])
    return (
        ChannelEpoch(found["epoch"], 0, number) if found["unborn"] else ChannelEpoch(found["epoch"], number)
    )


class Standing(Enum):
    """What a position that a reader brings is worth."""

    HOLDS = "the reader goes on after it"
    REMADE = "its channel was deleted; all messages of the one that has the name now are new to the reader"
    UNKNOWN = "it is no position of this channel"


def judge(
    named: ChannelEpoch | None, seq: int, epoch: str, channel_id: int, last_seq: int, deletion_id: int
) -> Standing:
    """Judge the position `seq` of the channel that a reader named (None: it named none).

    `epoch`, `channel_id` and `last_seq` are those of now; 0: there is no such channel. `deletion_id` is the
    last id that was taken when the channel of this name before that one was deleted.
    """
    if named is not None:
        if named.epoch != epoch:
            return Standing.UNKNOWN
        if named.channel_id not in (0, channel_id):
            return Standing.REMADE
        if named.unborn_at is not None and deletion_id > named.unborn_at:
            # The channel that was deleted since is the one that the reader means. Its messages are gone.
            return Standing.REMADE
    return Standing.HOLDS if seq <= last_seq else Standing.UNKNOWN
