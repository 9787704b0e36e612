"""The judge of restarts passes clean worlds and finds each planted mistake; and one short round, for real."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from load.children import CHECKOUT
from load.restart.checker import check
from load.restart.plan import CHAIN_END, END, ENDS, Plan, Variant
from load.restart.world import Copy, Count, Letter, World
from load.verdict import Breach
from tests.patience import PATIENCE_S

PLAN = Plan(Variant.OWN, hops=4)


def play(seed: int) -> World:
    """A world in which each message went its way, with a loop that was opened at some moment for each."""
    chance, world = random.Random(seed), World()
    for channel, number in (("loop.a", 6), ("loop.b", 6), ("hop.0", 3)):
        for n in range(number):
            _walk(world, f"{channel}:{n}", channel, chance)
    _count(world)
    return world


def _walk(world: World, name: str, channel: str, chance: random.Random) -> None:
    turns, steps, at = chance.randrange(4), Counter[tuple[str, str]](), channel
    world.published[name] = len(world.messages) + 1
    while (subscription := PLAN.subscription(at)) is not None:
        message_id = len(world.messages) + 1
        world.messages.append(Copy(message_id, at, name))
        turns -= subscription == "b"
        routes = PLAN.routes(subscription)
        steps[subscription, at] += 1
        to = routes[-1] if turns < 0 else routes[0]
        world.letters.append(
            Letter(subscription, at, message_id, name, "expired", to, message_id + 1, steps.total())
        )
        at = to
    journey = [
        {**dict(zip(("subscription", "channel"), step, strict=True)), "reason": "expired", "count": count}
        | {"first_at": "2026-01-01T00:00:00Z", "last_at": "2026-01-01T00:00:01Z"}
        for step, count in steps.items()
    ]
    world.messages.append(Copy(len(world.messages) + 1, at, name, msgspec.json.encode(journey).decode()))


def _count(world: World) -> None:
    died = Counter(letter.subscription for letter in world.letters)
    world.counts = {name: Count(died[name], died[name], 0, 0) for name in PLAN.names}
    world.listed = dict(died)
    world.rows = {"deliveries": 0, "settled_ahead": 0, "kept": len(world.letters)}
    world.arrived = {c: [m.id for m in world.messages if m.channel == c] for c in ENDS}


@pytest.mark.parametrize("seed", range(40))
def test_a_clean_world_passes(seed: int) -> None:
    verdict = check(PLAN, play(seed))
    assert verdict.ok, verdict.report()


def _change(rows: list[Any], which: Callable[[Any], bool], **members: Any) -> None:
    """Change the first row of this kind."""
    at = next(n for n, row in enumerate(rows) if which(row))
    rows[at] = rows[at]._replace(**members)


def _drop(rows: list[Any], which: Callable[[Any], bool]) -> None:
    rows.remove(next(row for row in rows if which(row)))


def _of(subscription: str) -> Callable[[Any], bool]:
    return lambda letter: letter.subscription == subscription


def _in(channel: str) -> Callable[[Any], bool]:
    return lambda message: message.channel == channel


def _again(rows: list[Any], which: Callable[[Any], bool], **members: Any) -> None:
    """Once more, with something different about it."""
    rows.append(next(row for row in rows if which(row))._replace(**members))


def _tell(world: World, channel: str, **members: Any) -> None:
    """Change the last step of a journey."""
    arrived = next(m for m in world.messages if m.channel == channel)
    *before, last = msgspec.json.decode(arrived.journey or "")
    _change(
        world.messages, _in(channel), journey=msgspec.json.encode([*before, {**last, **members}]).decode()
    )


NEW = 10**6
MISTAKES: list[tuple[Breach, Callable[[World], object]]] = [
    (Breach.LOST, lambda w: _drop(w.messages, _in(END))),
    (Breach.LOST, lambda w: _drop(w.messages, _in(CHAIN_END))),
    (Breach.LOST, lambda w: _drop(w.messages, _in("hop.2"))),
    (Breach.LOST, lambda w: _drop(w.messages, _in("hop.0"))),
    (Breach.STUCK, lambda w: _drop(w.letters, _of("hop.1"))),
    (Breach.STUCK, lambda w: _drop(w.letters, _of("a"))),
    (Breach.DOUBLED, lambda w: _again(w.letters, _of("b"))),
    (Breach.DOUBLED, lambda w: _again(w.letters, _of("hop.3"), to_id=NEW)),
    (Breach.DOUBLED, lambda w: _again(w.messages, _in("loop.b"), id=NEW)),
    (Breach.DOUBLED, lambda w: _again(w.messages, _in(END), id=NEW)),
    (Breach.DOUBLED, lambda w: _again(w.messages, _in(CHAIN_END), id=NEW)),
    (Breach.ROUTELESS, lambda w: _change(w.letters, _of("a"), to_channel=None, to_id=None)),
    (Breach.ASTRAY, lambda w: _change(w.letters, _of("hop.2"), to_channel=CHAIN_END)),
    (Breach.ASTRAY, lambda w: _change(w.letters, _of("b"), reason="max_deliver")),
    (Breach.ASTRAY, lambda w: _change(w.messages, _in("hop.3"), name="another")),
    (Breach.ASTRAY, lambda w: _again(w.letters, _of("hop.3"), message_id=w.arrived[END][0], to_id=None)),
    (Breach.JOURNEY, lambda w: _change(w.messages, _in(CHAIN_END), journey=None)),
    (Breach.JOURNEY, lambda w: _tell(w, CHAIN_END, count=2)),
    (Breach.JOURNEY, lambda w: _tell(w, CHAIN_END, subscription="hop.0")),
    (Breach.JOURNEY, lambda w: _tell(w, END, last_at="2025-01-01T00:00:00Z")),
    (Breach.JOURNEY, lambda w: _change(w.letters, _of("hop.3"), hops=3)),
    (Breach.LEDGER, lambda w: w.counts.update(a=w.counts["a"]._replace(dead_lettered=1))),
    (Breach.LEDGER, lambda w: w.counts.update(b=w.counts["b"]._replace(lag=1))),
    (Breach.LEDGER, lambda w: w.rows.update(deliveries=1)),
    (Breach.LEDGER, lambda w: w.rows.update(kept=w.rows["kept"] + 1)),
    (Breach.LEDGER, lambda w: w.arrived[END].pop()),
    (Breach.LEDGER, lambda w: w.listed.update(a=-1)),
]


@pytest.mark.parametrize(("breach", "plant"), MISTAKES)
def test_each_mistake_is_found(breach: Breach, plant: Callable[[World], object]) -> None:
    found = 0
    for seed in range(10):
        world = play(seed)
        plant(world)
        verdict = check(PLAN, world)
        assert not verdict.ok
        found += verdict.counts[breach] > 0
    assert found == 10, breach


def test_routes_come_from_where_the_variant_says() -> None:
    def routed(requests: list[Any]) -> set[str]:
        return {path.split("/")[2] for _, path, body in requests if "dead_letter" in str(body)}

    assert routed(Plan(Variant.OWN, 3).before()) == {"subscriptions"}
    assert routed(Plan(Variant.POLICY, 3).before()) == {"policies"}
    assert routed(Plan(Variant.FILE, 3).before()) == set()
    document = Plan(Variant.FILE, 3).file()
    assert document is not None
    assert {p["name"]: p["definition"]["dead_letter"]["channel"] for p in document["policies"]} == {
        "a": "loop.b", "b": "loop.a", "hop.0": "hop.1", "hop.1": "hop.2", "hop.2": CHAIN_END
    }  # fmt: skip
    assert Plan(Variant.OWN).file() is Plan(Variant.POLICY).file() is None


@pytest.mark.drill
@pytest.mark.parametrize("variant", [Variant.FILE])
def test_every_message_ends_where_it_should(variant: Variant) -> None:
    options = "--rounds 1 --messages 100 --chain 10 --hops 10 --ttl 2 --own-ttl 8 --seed 1"
    command = [sys.executable, "-m", "load.restart", "--variants", variant, *options.split()]
    command += ["--patience", str(2 * PATIENCE_S)]
    answer = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
