"""What workers measure, and what a scrape is told of it."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from app.metrics.measuring import TOGETHER, as_families, measured
from app.metrics.snapshots import Snapshots, family
from app.process.gauges import SettledLag
from db.measures import Measure, Measures
from subscriptions.domain.errors import unavailable


def measure(name: str) -> Measure:
    return Measure("default", name, 3, 1.5, 2.5, 1, 4, 5, 6, 7, 8)


def lines(snapshots: Snapshots) -> list[str]:
    registry = CollectorRegistry()
    registry.register(snapshots)
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]


def test_every_worker_tells_what_any_of_them_measured(tmp_path: Path) -> None:
    for worker in ("0", "1"):
        Snapshots(tmp_path).put(worker, [family("a", "A.", "counter", [({"worker": worker}, 1)])])
    assert lines(Snapshots(tmp_path)) == ['a_total{worker="0"} 1.0', 'a_total{worker="1"} 1.0']


def test_what_is_measured_again_replaces_what_was() -> None:
    snapshots = Snapshots(None)
    snapshots.put("subscriptions", as_families([measure("gone"), measure("stays")], 0, 1.0))
    snapshots.put("subscriptions", as_families([measure("stays")], 9, 2.0))
    said = lines(snapshots)
    assert 'gapless_subscription_lag_messages{namespace="default",subscription="stays"} 3.0' in said
    assert 'gapless_subscription_redelivered_total{namespace="default",subscription="stays"} 6.0' in said
    assert "gapless_subscriptions_unmeasured 9.0" in said
    assert not [line for line in said if "gone" in line]


def test_a_settled_id_that_moves_or_has_nothing_to_wait_for_does_not_stand_still() -> None:
    settled_lag = SettledLag()
    assert settled_lag.seen(5, 5, 10.0) == 0
    assert settled_lag.seen(5, 9, 11.0) == 1.0
    assert settled_lag.seen(5, 12, 15.0) == 5.0
    assert settled_lag.seen(6, 12, 16.0) == 0
    assert settled_lag.seen(12, 12, 20.0) == 0


class SlowOnes(Measures):
    """A database that does not get done with the first few in time."""

    def __init__(self) -> None: ...

    async def oldest(self, most: int) -> tuple[list[int], int]:
        return list(range(25)), 30

    async def of(self, ids: list[int]) -> list[Measure]:
        if 0 in ids:
            raise unavailable()
        return [measure(str(number)) for number in ids]


async def test_what_is_slow_to_measure_keeps_nothing_else_from_being_told() -> None:
    found, count = await measured(SlowOnes(), 25)
    assert [m.subscription for m in found] == [str(number) for number in range(TOGETHER, 25)]
    assert count == 30
