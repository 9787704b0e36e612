"""How long a receiver has, and when it is asked again."""

from __future__ import annotations

import pytest

from app.faces.webhooks.outcome import Failed
from app.faces.webhooks.push import answer_within, delay_after


@pytest.mark.parametrize(("ack_wait_s", "within_s"), [(3600, 15.0), (30, 15.0), (16, 12.0), (1, 0.75)])
def test_an_answer_is_waited_for_less_long_than_a_lease_lasts(ack_wait_s: float, within_s: float) -> None:
    assert answer_within(ack_wait_s) == within_s < ack_wait_s


@pytest.mark.parametrize(
    ("asked_s", "attempt", "backoff", "delay_s"),
    [
        (None, 1, [5, 300], None),
        (60.0, 1, [5, 300], 60.0),
        (1.0, 1, [5, 300], 5),
        (60.0, 2, [5, 300], 300),
        (60.0, 9, [5, 300], 300),
        (60.0, 1, [], 60.0),
    ],
)
def test_a_receiver_may_ask_for_longer_and_not_for_shorter(
    asked_s: float | None, attempt: int, backoff: list[float], delay_s: float | None
) -> None:
    assert delay_after(Failed("answered 503", asked_s), attempt, backoff) == delay_s
