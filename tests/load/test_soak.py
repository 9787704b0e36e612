"""The proofs of the soak pass what is whole and find what is not; a short one for real, and its control."""

from __future__ import annotations

import random
import re

import msgspec
import pytest

from load.soak.__main__ import main
from load.soak.proof import Ordered, Queued
from load.verdict import USUAL, Verdict

Log = list[tuple[int, str, int]]
"""id, channel, seq."""


def made(seed: int) -> Log:
    """A log of three channels, with voids."""
    chance = random.Random(seed)
    heads, found, at = dict.fromkeys("abc", 0), [], 0
    for _ in range(200):
        at += chance.choice((1, 1, 1, 2, 9))
        channel = chance.choice("abc")
        heads[channel] += 1
        found.append((at, channel, heads[channel]))
    return found


def heads_of(log: Log) -> dict[str, int]:
    return {channel: max(seq for _, c, seq in log if c == channel) for channel in "abc"}


def read(log: Log, given: Log) -> Verdict:
    proof = Ordered("reader")
    for number, one in enumerate(given):
        proof.take(*one)
        if number % 50 == 0:  # as it comes from another process
            proof = Ordered.from_json(msgspec.json.decode(msgspec.json.encode(proof.to_json())))
    return proof.finish(heads_of(log))


def counts(verdict: Verdict) -> tuple[int, ...]:
    return tuple(verdict.counts[breach] for breach in USUAL)


def worked(log: Log, given: Log) -> Verdict:
    proof = Queued("queue")
    for _, channel, seq in given:
        proof.take(channel, seq, f"k{seq % 4}")
    return proof.finish(heads_of(log))


def spoiled(log: Log, how: str, chance: random.Random) -> Log:
    at, given = chance.randrange(20, 180), list(log)
    if how == "lost":
        del given[at]
    elif how == "lost at the end":
        del given[-1]
    elif how == "doubled":
        given.insert(at, given[at])
    elif how == "doubled late":
        given.append(given[at])
    elif how == "late":
        given.insert(at + 15, given.pop(at))
    return given


@pytest.mark.parametrize("seed", range(10))
def test_what_is_whole_passes(seed: int) -> None:
    log = made(seed)
    assert read(log, log).ok
    assert worked(log, log).ok
    mixed = sorted(log, key=lambda one: (one[2] % 4, one[0]))
    assert worked(log, mixed).ok, "members compete: only a key is in order"


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    ("how", "reader", "queue"),
    [
        ("lost", (1, 0, 0), (1, 0, 0)),
        ("lost at the end", (1, 0, 0), (1, 0, 0)),
        ("doubled", (0, 1, 0), (0, 1, 0)),
        ("doubled late", (0, 1, 0), (0, 1, 0)),
        ("late", (0, 0, 1), None),
    ],
)
def test_each_mistake_is_found_for_what_it_is(
    seed: int, how: str, reader: tuple[int, int, int], queue: tuple[int, int, int] | None
) -> None:
    log = made(seed)
    given = spoiled(log, how, random.Random(seed))
    found = read(log, given)
    assert counts(found) == reader
    assert found.examples
    if queue is not None:
        found = worked(log, given)
        assert counts(found) == queue


def test_a_queue_that_turns_a_key_round_is_found() -> None:
    found = worked(made(1), sorted(made(1), key=lambda one: one[0], reverse=True))
    lost, doubled, unordered = counts(found)
    assert unordered > 0
    assert (lost, doubled) == (0, 0)


@pytest.mark.drill
def test_nothing_is_lost_while_everything_runs_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    code = main(["--minutes", "0.15", "--spark", "reader", "--readers", "1", "--ahead", "5000"])
    said = capfd.readouterr().out
    assert code == 0, said
    assert "clean: 0 lost, 0 doubled, 0 out of order, 0 regressions" in said
    assert all(int(count.replace(",", "")) for count in re.findall(r": ([\d,]+) taken", said))


@pytest.mark.drill
def test_a_last_id_that_nobody_has_taken_is_noticed(capfd: pytest.CaptureFixture[str]) -> None:
    code = main(
        ["--minutes", "0.1", "--spark", "none", "--readers", "1", "--ahead", "5000", "--control", "3"]
    )
    said = capfd.readouterr().out
    assert code == 1, said
    assert "BROKEN" in said
