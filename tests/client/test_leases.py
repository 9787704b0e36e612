"""Which leases are extended when, and which are lost. No network, no waiting."""

from __future__ import annotations

import gc
import logging
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import pairwise

import pytest
from gapless import PulledDelivery, Settled
from gapless._models import message_from
from gapless._streams.gather import Gatherer
from gapless._streams.leases import FAILED_FLOOR_SECONDS, FLOOR_SECONDS, NEVER, Lease, Leases
from gapless._streams.server_clock import ServerClock
from hypothesis import given
from hypothesis import strategies as st

from tests.client.model import message

EPOCH = datetime(2026, 11, 20, 12, tzinfo=UTC)


class World:
    """One time for all: `now` is this machine's, the service's clock runs `ahead` of it by some seconds."""

    def __init__(self, ahead: float = 0.0, max_hold: float = 3600.0) -> None:
        self.now = 0.0
        self.ahead = ahead
        self.leases = Leases(ServerClock(lambda: EPOCH.timestamp() + self.now), max_hold)

    def deadline(self, seconds: float) -> datetime:
        return EPOCH + timedelta(seconds=self.now + self.ahead + seconds)

    def see_date(self) -> None:
        self.leases.server_clock.observe(format_datetime(self.deadline(0), usegmt=True))

    def begin(self, receipt: str = "r", lease_seconds: float = 30.0) -> Lease:
        deadline = self.deadline(lease_seconds)
        delivery = PulledDelivery("orders", receipt, 1, deadline, message_from(message(7)))
        return self.leases.begin(delivery, self.now)

    def due_at(self, now: float) -> list[str]:
        self.now = now
        return self.leases.due(now)

    def extended(self, *receipts: str, lease_seconds: float = 30.0) -> None:
        deadline = self.deadline(lease_seconds)
        results = [Settled(receipt, "extended", deadline=deadline) for receipt in receipts]
        self.leases.extended(results, self.now)


def test_a_lease_is_extended_half_way_to_its_end_again_and_again() -> None:
    world = World()
    lease = world.begin()
    for start in (0.0, 15.0, 30.0):
        assert world.leases.next_at() == start + 15.0
        assert world.due_at(start + 14.9) == []
        assert world.due_at(start + 15.0) == ["r"]
        assert world.leases.next_at() == NEVER, "it is asked for once"
        world.extended("r")
    assert lease.deadline == world.deadline(30.0)
    assert not lease.lost


def test_leases_whose_turn_is_near_are_extended_together() -> None:
    world = World()
    kept = [world.begin("a")]
    world.now = 5.0
    kept += [world.begin("b")]
    world.now = 14.0
    kept += [world.begin("c")]
    assert world.due_at(15.0) == ["a", "b"]
    world.extended("a", "b")
    assert world.leases.next_at() == 29.0


@given(st.lists(st.tuples(st.floats(0, 60), st.floats(0.5, 600)), min_size=1, max_size=20))
def test_no_lease_that_is_kept_comes_near_its_end(arrivals: list[tuple[float, float]]) -> None:
    """Each arrival: when, and how long its leases last. Extended at the moment that was asked for."""
    world = World(max_hold=NEVER)
    seconds = {str(n): lasting for n, (_, lasting) in enumerate(arrivals)}
    coming = sorted((at, str(n)) for n, (at, _) in enumerate(arrivals))
    kept: dict[str, Lease] = {}
    for _ in range(300):
        at = min(world.leases.next_at(), coming[0][0] if coming else NEVER)
        world.now = max(world.now, at)
        if coming and coming[0][0] <= world.now:
            _, receipt = coming.pop(0)
            kept[receipt] = world.begin(receipt, seconds[receipt])
        for receipt in world.leases.due(world.now):
            world.extended(receipt, lease_seconds=seconds[receipt])
        for receipt, lease in kept.items():
            assert (
                lease.expires_at - world.now
                >= min(seconds[receipt] / 2, seconds[receipt] - FLOOR_SECONDS) - 1e-6
            )


def test_what_is_let_go_is_not_extended_until_it_is_kept_again() -> None:
    world = World()
    lease = world.begin()
    world.leases.let_go(lease)
    assert world.leases.next_at() == NEVER
    assert world.due_at(29.0) == []
    world.leases.keep(lease)
    assert world.due_at(29.0) == ["r"]


@pytest.mark.parametrize("status", ["acked", "unknown", "nacked"])
def test_what_is_settled_is_over(status: str) -> None:
    world = World()
    lease = world.begin()
    world.leases.settle(lease, Settled("r", status))  # type: ignore[arg-type]
    world.leases.keep(lease)
    assert lease.settled
    assert not lease.lost
    assert world.due_at(1000.0) == []
    world.leases.lose_all("the stream ended")
    assert not lease.lost


@pytest.mark.parametrize("status", ["lease_expired", "unknown"])
def test_a_refused_extension_is_a_lost_lease(status: str, caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    lease = world.begin()
    lease.given = True
    world.leases.extended([Settled("r", status)], 0.0)  # type: ignore[arg-type]
    assert lease.lost
    assert world.due_at(1000.0) == []
    assert "lease of message 7 of orders lost" in caplog.text


def test_a_lost_lease_nobody_had_yet_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    lease = world.begin()
    world.leases.lose_all("the stream ended")
    assert lease.lost
    assert [record for record in caplog.records if record.levelno >= logging.INFO] == []


def test_the_answer_to_an_ack_has_the_last_word() -> None:
    world = World()
    acked, refused = world.begin("a"), world.begin("b")
    world.leases.lose_all("the stream ended")
    world.leases.settle(acked, Settled("a", "acked"))
    world.leases.settle(refused, Settled("b", "lease_expired"))
    assert (acked.lost, refused.lost) == (False, True)


def test_an_extension_that_cannot_be_asked_for_is_tried_again_before_the_end() -> None:
    world = World()
    lease = world.begin()
    asked = []
    for _ in range(20):
        at = world.leases.next_at()
        asked.append(at)
        receipts = world.due_at(at)
        assert receipts == ["r"]
        world.leases.failed(receipts, world.now)
    assert asked[:4] == [15.0, 22.5, 26.25, 28.125]
    assert all(later - earlier >= FAILED_FLOOR_SECONDS for earlier, later in pairwise(asked))
    assert not lease.lost, "only the service can say that it is"


def test_a_handler_that_hangs_gives_its_message_back_at_last(caplog: pytest.LogCaptureFixture) -> None:
    world = World(max_hold=100.0)
    lease = world.begin()
    while (at := world.leases.next_at()) != NEVER:
        if world.due_at(at):
            world.extended("r")
    assert 100.0 <= world.now <= 115.0
    assert "in hand for 100 s" in caplog.text
    assert not lease.lost


def test_one_call_takes_a_thousand() -> None:
    world = World()
    kept = [world.begin(str(n)) for n in range(1500)]
    first = world.due_at(15.0)
    second = world.due_at(15.0)
    assert (len(first), len(second)) == (1000, 500)
    assert len({*first, *second}) == len(kept)


@pytest.mark.parametrize("ahead", [-3600.0, -30.0, 30.0, 3600.0])
def test_a_wrong_clock_is_seen_through(ahead: float) -> None:
    world = World(ahead=ahead)
    world.see_date()
    world.begin()
    assert world.leases.next_at() == pytest.approx(15.0, abs=0.5)


@pytest.mark.parametrize("ahead", [-1.4, 0.0, 1.4])
def test_less_than_a_date_can_tell_is_no_difference(ahead: float) -> None:
    world = World(ahead=ahead)
    world.see_date()
    world.begin()
    assert world.leases.next_at() == pytest.approx(15.0 + ahead / 2)


@pytest.mark.parametrize("date", [None, "", "soon", "Fri, 99 Nov 2026 12:00:00 GMT"])
def test_without_a_date_this_machine_is_believed(date: str | None) -> None:
    world = World()
    world.leases.server_clock.observe(date)
    world.begin()
    assert world.leases.next_at() == 15.0


def test_a_service_far_behind_is_not_hammered() -> None:
    world = World(ahead=-1000.0)
    world.begin()
    for step in range(1, 5):
        assert world.leases.next_at() == step * FLOOR_SECONDS
        assert world.due_at(step * FLOOR_SECONDS) == ["r"]
        world.extended("r")


def test_what_the_caller_dropped_without_a_word_does_not_pile_up() -> None:
    world = World()
    for n in range(100):
        world.leases.let_go(world.begin(str(n)))
    gc.collect()
    assert len(world.leases._held) == 0


def test_receipts_gather_while_a_call_is_under_way() -> None:
    gatherer: Gatherer[int] = Gatherer()
    assert gatherer.idle
    gatherer.add("a", 1)
    assert gatherer.take() == [("a", 1)]
    for n in range(2500):
        gatherer.add(str(n), n)
        assert gatherer.take() == []
    sizes: list[int] = []
    while not gatherer.idle:
        gatherer.sent()
        sizes.append(len(gatherer.take()))
    assert sizes == [1000, 1000, 500, 0]
