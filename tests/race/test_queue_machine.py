"""Anything that can be done to a durable subscription, in any order, on the real database.

After every step each message must be where what was done may have brought it, the ledger must come out even,
and the laws must hold. Nobody sleeps: time passes by moving all times into the past.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from app.embedded import EmbeddedPostgres
from subscriptions.domain.delivery import (
    Claimed,
    DeadLetterFilter,
    Definition,
    Delivery,
    Hand,
    Nack,
    Outstanding,
    Receipt,
)
from subscriptions.domain.errors import GaplessError
from subscriptions.domain.model import Append, NewMessage
from tests.conftest import drop_database, make_database
from tests.race.laws import check_queues
from tests.race.queue_model import At, Deed, Snapshot, judge, look, pass_time, trim
from tests.race.queues import Queues, open_queues, outcomes

T = TypeVar("T")
ACK_WAIT = 1000.0
SPANS = [317.0, 701.0, 1499.0]
"""Seconds that pass at once; no sum of them comes near a deadline that is set here."""
KEYS = [None, "x", "y"]
PATCHES: list[dict[str, Any]] = [
    *({"ordering": ordering} for ordering in ("key", "none", "channel")),
    *({"max_deliver": most} for most in (1, 0, None)),
]
CHANGES = ["seek", "settings", "policy", "pause", "trim", "filter", "purge"]


class World:
    """One database for all examples, each with channels and a subscription of its own."""

    def __init__(self, runner: asyncio.Runner, queues: Queues) -> None:
        self.runner = runner
        self.queues = queues
        self.examples = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)


class QueueMachine(RuleBasedStateMachine):
    """One subscription. `given` is every receipt that was ever handed out, with what was in it."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.queues = world.queues
        world.examples += 1
        self.name = f"m{world.examples}"
        self.channels = [f"{self.name}.a", f"{self.name}.b"]
        self.given: list[Receipt] = []
        self.deed = Deed()
        self.published = self.replayed = self.told = 0
        self.sought = False  # What is ahead is not what was published since.

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.world.run(work)

    @initialize(
        single=st.booleans(),
        ordering=st.sampled_from(["key", "channel", "none"]),
        max_deliver=st.sampled_from([0, 1, 2, 5]),
        extra=st.sampled_from([{}, {"message_ttl": 2503.0}, {"max_backlog": 3}, {"max_in_flight": 2}]),
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=6),
    )
    def make(
        self,
        single: bool,
        ordering: str,
        max_deliver: int,
        extra: dict[str, Any],
        keys: list[str | None],
    ) -> None:
        own = {
            "ordering": ordering,
            "max_deliver": max_deliver,
            "ack_wait": ACK_WAIT,
            "backoff": [0.0, 557.0],
        }
        channels = (self.channels[0],) if single else (f"{self.name}.*",)
        definition = Definition(self.name, channels, "earliest", {**own, **extra})
        self.subscription, made = self.do(self.queues.subscriptions.put("default", definition))
        assert made
        self.followed = self.channels[: 1 if single else 2]
        self.settings = definition.settings
        self.publish_to(0, keys, None)
        self.at = self.do(self.look())

    async def look(self) -> Snapshot:
        return await look(self.queues.owner, self.subscription, self.channels)

    def receipts(self, data: st.DataObject, most: int = 3) -> list[Receipt]:
        """Mostly of what is leased, at times of long ago."""
        live = [r for r in self.given if self.at[r.message_id].lease == r.lease]
        stale: int = data.draw(st.integers(0, 4))
        pool = live if live and stale else self.given
        drawn: list[Receipt] = data.draw(
            st.lists(st.sampled_from(pool), min_size=1, max_size=most, unique=True)
        )
        return drawn

    def leased(self, receipt: Receipt) -> bool:
        place = self.at[receipt.message_id]
        return place.at is At.LEASED and place.lease == receipt.lease

    def live(self, receipt: Receipt) -> bool:
        return self.leased(receipt) and not self.at[receipt.message_id].ended

    def status(self, receipt: Receipt, done: str) -> str:
        """What a settlement must be answered with."""
        if self.live(receipt):
            return done
        return (
            "lease_expired"
            if self.at[receipt.message_id].at in (At.LEASED, At.DUE, At.WAITING)
            else "unknown"
        )

    # --- publishing and taking

    @rule(
        channel=st.integers(0, 1),
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=6),
        ttl=st.sampled_from([None, None, 2207.0]),
    )
    def publish(self, channel: int, keys: list[str | None], ttl: float | None) -> None:
        self.publish_to(channel, keys, ttl)

    def publish_to(self, channel: int, keys: list[str | None], ttl: float | None) -> None:
        messages = [NewMessage(self.channels[channel], b"1", key=key, ttl=ttl) for key in keys]
        self.do(self.queues.append(*messages))
        if self.channels[channel] in self.followed:
            self.published += len(keys)

    @rule(limit=st.integers(1, 2))
    def claim_few(self, limit: int) -> None:
        self.claim(limit)

    @rule()
    def claim_all(self) -> None:
        self.claim(10)

    @rule(members=st.lists(st.integers(0, 3), min_size=1, max_size=8))
    def claim_for(self, members: list[int]) -> None:
        """For streams and pulls, as a group does."""
        held = Counter(p.member for p in self.at.places.values() if p.at is At.LEASED)
        most = {
            n: min(
                [
                    100,
                    *[
                        p.company
                        for p in self.at.places.values()
                        if p.at is At.LEASED and p.member == n and p.company
                    ],
                ]
            )
            for n in members
        }
        hands: list[Hand] = []
        for n in members:
            held[n] += 1
            if n == 0 or held[n] <= most[n]:
                hands.append(Hand(n, held[n]))
        if not hands:
            return
        given = self.do(self.claim_hands(hands))
        self.note(given)
        self.deed.decides = True
        after = self.do(self.look())
        for n in set(members):
            theirs = [p for p in after.places.values() if p.at is At.LEASED and p.member == n]
            doubted = [p.company for p in theirs if p.company is not None]
            new = any(d.member == n for d in given)
            assert not (doubted and new) or len(doubted if n == 0 else theirs) <= min(doubted), (n, theirs)

    async def claim_hands(self, hands: list[Hand]) -> list[Delivery]:
        settled = await self.queues.settled()
        claimed = await self.queues.deliveries.claim(self.subscription.id, settled, len(hands), hands=hands)
        await self.hear(claimed)
        return list(claimed.deliveries)

    async def hear(self, claimed: Claimed) -> None:
        """What is told of is told once."""
        self.told += sum(loss.missed for loss in claimed.losses)
        await self.queues.deliveries.reported(self.subscription.id, claimed.losses)

    def claim(self, limit: int) -> None:
        before = self.do(self.look())
        claimed = self.do(self.queues.claim(self.subscription, limit))
        self.do(self.hear(claimed))
        self.note(list(claimed.deliveries))
        self.deed.decides = True
        room = min(limit, before.totals["max_in_flight"] - before.count(At.LEASED))
        assert len(claimed.deliveries) <= max(0, limit)
        if not claimed.more and not claimed.paused and len(claimed.deliveries) < room:
            after = self.do(self.look())
            assert after.count(At.AHEAD) == 0, "all that could be given was given"
            left = [p for p in after.places.values() if p.at is At.DUE and p.left <= 0]
            assert all(p.company is not None for p in left)
            doubted = [
                p.company for p in after.places.values() if p.at is At.LEASED and p.member == 0 and p.company
            ]
            assert not left or doubted, "what is in doubt waits for nothing but what else is in doubt"
        if before.totals["paused"]:
            assert not claimed.deliveries

    def note(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            self.deed.claimed[delivery.message.id] = (delivery.lease, delivery.attempt)
            self.given.append(Receipt(self.subscription.id, delivery.message.id, delivery.lease))

    # --- settling

    @precondition(lambda self: self.given)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        receipts = self.receipts(data)
        answers = outcomes(self.do(self.queues.deliveries.ack(receipts)))
        self.deed.acked = {r.message_id for r in receipts if self.live(r)}
        # An older receipt of a message that is acked along with it finds it settled.
        wanted = [
            "unknown" if r.message_id in self.deed.acked and not self.live(r) else self.status(r, "acked")
            for r in receipts
        ]
        assert answers == wanted

    @precondition(lambda self: self.given)
    @rule(data=st.data(), delay=st.sampled_from([None, 0.0, 563.0]), dead_letter=st.booleans())
    def nack(self, data: st.DataObject, delay: float | None, dead_letter: bool) -> None:
        receipts = self.receipts(data)
        nack = Nack(None if dead_letter else delay, dead_letter)
        settled, _ = self.do(self.queues.deliveries.nack(receipts, nack))
        assert outcomes(settled) == [self.status(r, "nacked") for r in receipts]
        live = {r.message_id for r in receipts if self.live(r)}
        if dead_letter:
            self.deed.rejected = live
        else:
            self.deed.back = self.deed.nacked = live

    @precondition(lambda self: self.given)
    @rule(data=st.data(), ack_wait=st.sampled_from([None, 10.0, 5003.0]))
    def extend(self, data: st.DataObject, ack_wait: float | None) -> None:
        receipts = self.receipts(data)
        settled = self.do(self.queues.deliveries.extend(receipts, ack_wait))
        assert outcomes(settled) == [self.status(r, "extended") for r in receipts]

    @precondition(lambda self: self.given)
    @rule(data=st.data(), delay=st.sampled_from([None, 0.0, 571.0]))
    def give_back(self, data: st.DataObject, delay: float | None) -> None:
        receipts = self.receipts(data)
        settled = self.do(self.queues.deliveries.give_back(receipts, delay))
        assert outcomes(settled) == [self.status(r, "released") for r in receipts]
        self.deed.back = self.deed.uncounted = {r.message_id for r in receipts if self.live(r)}

    @precondition(lambda self: self.given)
    @rule(data=st.data(), delivered=st.booleans())
    def release(self, data: st.DataObject, delivered: bool) -> None:
        receipts = self.receipts(data)
        self.do(self.queues.deliveries.release(receipts, delivered=delivered))
        held = {r.message_id for r in receipts if self.leased(r)}
        self.deed.back = held
        self.deed.lost, self.deed.uncounted = (held, set()) if delivered else (set(), held)

    @precondition(lambda self: self.given)
    @rule(data=st.data())
    def transact(self, data: st.DataObject) -> None:
        receipts = self.receipts(data)
        output = Append("default", (NewMessage(f"{self.name}-out", b"1"),))
        try:
            self.do(self.queues.transactions.transact(output, receipts, ["x"] * len(receipts)))
        except GaplessError as error:
            stale = len(error.errors)
        else:
            stale = 0
            self.deed.acked = {r.message_id for r in receipts}
        assert stale == sum(not self.live(r) for r in receipts)

    # --- time

    @rule(seconds=st.sampled_from(SPANS))
    def pass_time(self, seconds: float) -> None:
        self.do(pass_time(self.queues.owner, self.subscription, self.channels, seconds))
        self.at = self.do(self.look())

    @rule(limit=st.sampled_from([1, 2, 1000]))
    def reap(self, limit: int) -> None:
        self.do(self.queues.reap(self.subscription, limit))
        self.deed.decides = True
        after = self.do(self.look())
        assert not [p for p in after.places.values() if p.ended or (p.expired and p.at is not At.LEASED)]
        if (most := self.settings.get("max_backlog")) is not None:
            assert after.count(At.AHEAD, At.DUE, At.WAITING) <= most

    # --- dead letters

    @precondition(lambda self: self.at.letters)
    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        letter = data.draw(st.sampled_from(sorted(self.at.letters)))
        message, _ = self.at.letters[letter]
        assert self.do(self.queues.dead_letters.replay("default", letter)) == (self.name, message)
        self.deed.replayed = {message}
        self.replayed += 1

    @precondition(lambda self: self.at.letters)
    @rule()
    def replay_all(self) -> None:
        which = DeadLetterFilter("default", subscription=self.name)
        count = len(self.at.letters)
        assert self.do(self.queues.dead_letters.replay_all(which)) == (count, 0)
        self.deed.replayed = {message for message, _ in self.at.letters.values()}
        self.replayed += count

    # --- changes

    @rule(change=st.sampled_from(CHANGES), data=st.data())
    def change(self, change: str, data: st.DataObject) -> None:
        """Rarely, or nothing would ever get on."""
        if change == "seek" and data.draw(st.booleans()):
            self.seek(data.draw(st.sampled_from(["earliest", "latest", *map(str, sorted(self.at.places))])))
        elif change == "settings":
            patch = data.draw(st.sampled_from(PATCHES))
            self.do(self.queues.subscriptions.patch("default", self.name, None, patch))
        elif change == "policy":
            self.policy(data.draw(st.sampled_from([None, 2, 3])))
        elif change == "pause":
            self.do(self.queues.subscriptions.pause("default", self.name, True))
            self.claim(1)
            self.do(self.queues.subscriptions.pause("default", self.name, False))
        elif change == "trim":
            channel, keep = data.draw(st.sampled_from(self.channels)), data.draw(st.integers(1, 6))
            self.do(trim(self.queues.owner, channel, keep))
            self.deed.trimmed = True
        elif change == "purge" and data.draw(st.booleans()):
            self.purge()
        elif change == "filter" and data.draw(st.booleans()):
            self.filter(data.draw(st.sampled_from([None, {"keys": ["x"]}, {"keys": ["x", "y"]}])))

    def purge(self) -> None:
        """All that nobody has goes, is counted, and dies no death."""
        before = self.do(self.look())
        settled, purge = self.do(self.queues.settled()), self.queues.subscriptions.purge
        purged = self.do(purge("default", self.name, settled))
        after = self.do(self.look())
        assert after.count(At.AHEAD, At.DUE, At.WAITING) == 0
        assert (after.count(At.LEASED), after.letters) == (before.count(At.LEASED), before.letters)
        assert after.totals["purged"] - before.totals["purged"] == purged
        if not self.sought:
            assert purged == before.count(At.AHEAD, At.DUE, At.WAITING)
        self.deed.purged = True

    def filter(self, wanted: dict[str, Any] | None) -> None:
        """Leases stay, rows that it does not let through are over, and so is nothing else."""
        self.do(self.queues.subscriptions.patch("default", self.name, None, {"filter": wanted}))
        after = self.do(self.look())
        assert after.letters == self.at.letters
        under_way = {id_ for id_, place in self.at.places.items() if place.at is not At.AHEAD}
        left = {id_ for id_, place in after.places.items() if place.at is not At.AHEAD}
        assert left <= under_way
        assert all(place.fits or place.at is At.LEASED for place in after.places.values())
        for id_ in under_way:
            was, now = self.at[id_], after[id_]
            if was.at is At.LEASED:
                assert (now.at, now.lease) == (At.LEASED, was.lease)
            elif id_ in left:
                assert now.attempts == was.attempts
        if wanted is None:
            assert left == under_way
        self.at, self.sought = after, True

    def seek(self, target: str) -> None:
        tried, _ = self.do(self.queues.subscriptions.try_seek("default", self.name, target))
        moved = self.do(self.queues.subscriptions.seek("default", self.name, target))
        assert tried.stats is not None
        assert moved.stats is not None
        # Nobody knows here which ids are settled, so one is found by its age: it may be a later one by then.
        assert tried.stats.cursor <= moved.stats.cursor
        unlike: dict[str, Any] = {"oldest_unacked_seconds": None, "cursor": 0}
        assert replace(tried.stats, **unlike) == replace(moved.stats, **unlike)
        after = self.do(self.look())
        assert all(place.at is At.AHEAD for place in after.places.values())
        if target == "latest":
            assert not after.places
        back = {letter: after.letters[letter][0] for letter in after.letters.keys() - self.at.letters.keys()}
        assert self.at.letters.items() <= after.letters.items()
        assert sorted(back.values()) == sorted(self.at.totals["kept"]), (
            "what was replayed is a dead letter again"
        )
        self.at, self.sought = after, True

    def policy(self, max_deliver: int | None) -> None:
        if max_deliver is not None:
            self.do(self.queues.policy(self.name, self.name, max_deliver=max_deliver))
        elif self.name in {policy.name for policy in self.do(self.queues.policies.all("default"))}:
            self.do(self.queues.policies.delete("default", self.name))

    # --- what is true after each

    @invariant()
    def everything_is_somewhere(self) -> None:
        if not hasattr(self, "at"):
            return
        after = self.do(self.look())
        judge(self.at, after, self.deed)
        self.at, self.deed = after, Deed()
        self.check_look(after)
        totals = after.totals
        assert totals["ahead"] == after.count(At.AHEAD)
        if not self.sought:
            in_rows = after.count(At.LEASED, At.DUE, At.WAITING)
            settled = totals["acked"] + totals["dead"] - self.replayed + totals["removed"] + totals["purged"]
            assert self.told + totals["gaps"] == totals["noted"], "each loss is told, or waits to be"
            assert self.published == settled + in_rows + totals["ahead"], totals
        self.do(check_queues(self.queues.owner))

    def check_look(self, after: Snapshot) -> None:
        """Whoever looks sees each message where it is, and what each waits for."""
        states = {At.LEASED: "leased", At.WAITING: "waiting"}
        seen = {each.message.id: each for each in self.do(self.seen())}
        wanted = {
            id_: place
            for id_, place in after.places.items()
            if (place.at is At.LEASED and not place.ended) or (place.fits and not place.expired)
        }
        assert sorted(seen) == sorted(wanted)
        for id_, place in wanted.items():
            found = seen[id_]
            if place.at is At.AHEAD:
                assert found.attempt == 0
                assert (found.state == "waiting") == (found.waits_for is not None)
            else:
                later = "delayed" if place.at is At.DUE and place.left > 0 else "ready"
                state = later if place.ended else states.get(place.at, later)
                assert (found.state, found.attempt) == (state, place.attempts)

    async def seen(self) -> list[Outstanding]:
        found: list[Outstanding] = []
        after, more = 0, True
        while more:
            page = await self.queues.deliveries.look("default", self.name, None, after, 3)
            found += page.messages
            after, more = page.cursor, page.has_more
        return found

    def teardown(self) -> None:
        if hasattr(self, "at"):
            self.do(self.queues.subscriptions.delete("default", self.name))
            self.do(self.queues.dead_letters.purge(DeadLetterFilter("default", subscription=self.name)))


@asynccontextmanager
async def _world(postgres: EmbeddedPostgres) -> AsyncIterator[Queues]:
    database = await make_database(postgres)
    async with open_queues(database) as queues:
        yield queues
    await drop_database(postgres, database)


@pytest.mark.parametrize("examples", [6, pytest.param(60, marks=pytest.mark.drill)])
def test_anything_in_any_order(postgres: EmbeddedPostgres, examples: int) -> None:
    with asyncio.Runner() as runner:
        opened = _world(postgres)
        world = World(runner, runner.run(opened.__aenter__()))
        try:
            bounds = settings(
                max_examples=examples, stateful_step_count=40, suppress_health_check=list(HealthCheck)
            )
            run_state_machine_as_test(lambda: QueueMachine(world), settings=bounds)  # type: ignore[arg-type]
        finally:
            runner.run(opened.__aexit__(None, None, None))
