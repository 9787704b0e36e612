"""A position of a channel is believed only with the name of that very channel."""

from __future__ import annotations

import pytest

from subscriptions.domain.channel_epoch import ChannelEpoch, Standing, judge, parse_channel_epoch

LOG = "0b9c2f5e-1111-4222-8333-444455556666"


@pytest.mark.parametrize(
    "epoch", [ChannelEpoch(LOG), ChannelEpoch(LOG, 17), ChannelEpoch(LOG, 0, 900), ChannelEpoch(LOG, 0, 0)]
)
def test_its_text_says_the_same(epoch: ChannelEpoch) -> None:
    assert parse_channel_epoch(str(epoch)) == epoch


@pytest.mark.parametrize(
    "text",
    ["", "_", "ABC", LOG + ".", LOG + ".~", LOG + ".x", LOG + ".1.2", LOG + "." + "9" * 19, "\n", "a" * 65],
)
def test_anything_else_is_none(text: str) -> None:
    assert parse_channel_epoch(text) is None


@pytest.mark.parametrize(
    ("named", "seq", "channel_id", "last_seq", "deletion_id", "standing"),
    [
        (ChannelEpoch(LOG, 17), 5, 17, 5, 0, Standing.HOLDS),
        (ChannelEpoch(LOG, 17), 6, 17, 5, 0, Standing.UNKNOWN),
        (ChannelEpoch("another", 17), 5, 17, 5, 0, Standing.UNKNOWN),
        (ChannelEpoch(LOG, 17), 5, 18, 9, 0, Standing.REMADE),
        (ChannelEpoch(LOG, 17), 5, 0, 0, 0, Standing.REMADE),
        (ChannelEpoch(LOG, 17), 0, 18, 9, 0, Standing.REMADE),
        (ChannelEpoch(LOG, 0, 900), 5, 17, 5, 900, Standing.HOLDS),
        (ChannelEpoch(LOG, 0, 900), 5, 17, 9, 901, Standing.REMADE),
        (ChannelEpoch(LOG, 0, 900), 0, 17, 9, 901, Standing.REMADE),
        (ChannelEpoch(LOG, 0, 900), 0, 0, 0, 0, Standing.HOLDS),
        (ChannelEpoch(LOG, 0, 900), 0, 0, 0, 901, Standing.REMADE),
        (ChannelEpoch(LOG, 0, 900), 1, 0, 0, 0, Standing.UNKNOWN),
        (ChannelEpoch(LOG), 3, 17, 5, 0, Standing.HOLDS),
        (None, 5, 17, 5, 0, Standing.HOLDS),
        (None, 6, 17, 5, 0, Standing.UNKNOWN),
    ],
)
def test_a_position_is_judged(
    named: ChannelEpoch | None, seq: int, channel_id: int, last_seq: int, deletion_id: int, standing: Standing
) -> None:
    assert judge(named, seq, LOG, channel_id, last_seq, deletion_id) is standing
