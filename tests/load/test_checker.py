"""The checker is only worth its word when it finds every planted fault and nothing in a clean run."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from load.checker import check
from load.history import Gap, History, Outcome
from load.verdict import Breach, Verdict
from tests.load.sample import Reader, Run, Said, sample

SEEDS = range(40)

Fault = Callable[[Run, random.Random], Breach]


def _reader(run: Run, chance: random.Random, several: bool = False) -> Reader:
    """Some live reader with enough deliveries to spoil; `several` asks for more than one channel."""
    fit = [r for r in run.live() if len(r.given) > 4]
    if several:
        fit = [r for r in fit if len({said.channel for said in r.given}) > 1]
    return chance.choice(fit)


def lost_first(run: Run, chance: random.Random) -> Breach:
    _reader(run, chance).given.pop(0)
    return Breach.LOST


def lost_middle(run: Run, chance: random.Random) -> Breach:
    given = _reader(run, chance).given
    given.pop(chance.randrange(1, len(given) - 1))
    return Breach.LOST


def lost_last(run: Run, chance: random.Random) -> Breach:
    _reader(run, chance).given.pop()
    return Breach.LOST


def lost_everything(run: Run, chance: random.Random) -> Breach:
    _reader(run, chance).given.clear()
    return Breach.LOST


def lost_from_log(run: Run, chance: random.Random) -> Breach:
    """A confirmed message is in no cursor and not in the log."""
    confirmed = [t for t in run.tries if t[3] is Outcome.OK]
    gone = chance.choice(confirmed)[4]
    for reader in run.readers:
        reader.given = [said for said in reader.given if said.id != gone]
    return Breach.LOST


def lost_before_seq(run: Run, chance: random.Random) -> Breach:
    """A confirmed message was never stored at all, so that seq shows no hole."""
    run.tries.append(("chat.room0", 5, None, Outcome.OK, 0, 0))
    return Breach.LOST


def doubled_near(run: Run, chance: random.Random) -> Breach:
    given = _reader(run, chance).given
    at = chance.randrange(len(given))
    given.insert(at, given[at])
    return Breach.DOUBLED


def doubled_late(run: Run, chance: random.Random) -> Breach:
    given = _reader(run, chance).given
    given.append(given[chance.randrange(len(given) // 2)])
    return Breach.DOUBLED


def stored_twice(run: Run, chance: random.Random) -> Breach:
    """One try became two messages, with proper ids and seqs, and every reader was given both."""
    said = chance.choice(run.stored)
    seq = max(s.seq for s in run.stored if s.channel == said.channel) + 1
    twin = Said(run.stored[-1].id + 1, said.channel, seq, said.digest)
    run.stored.append(twin)
    for reader in run.readers:
        if any(s.channel == said.channel for s in reader.given):
            reader.given.append(twin)
    return Breach.DOUBLED


def key_with_two_ids(run: Run, chance: random.Random) -> Breach:
    keyed = [t for t in run.tries if t[2] and t[3] is Outcome.OK]
    channel, value, key, outcome, message_id, seq = chance.choice(keyed)
    run.tries.append((channel, value, key, outcome, message_id + 10_000, seq + 1))
    return Breach.DOUBLED


def swapped_within(run: Run, chance: random.Random) -> Breach:
    """Two messages of one channel change places."""
    given = _reader(run, chance).given
    places: dict[str, list[int]] = {}
    for at, said in enumerate(given):
        places.setdefault(said.channel, []).append(at)
    a, b = chance.sample(max(places.values(), key=len), 2)
    given[a], given[b] = given[b], given[a]
    return Breach.OUT_OF_ORDER


def swapped_across(run: Run, chance: random.Random) -> Breach:
    """Two neighbours of different channels change places: each channel alone still looks right."""
    given = _reader(run, chance, several=True).given
    pairs = [at for at in range(len(given) - 1) if given[at].channel != given[at + 1].channel]
    at = chance.choice(pairs)
    given[at], given[at + 1] = given[at + 1], given[at]
    return Breach.OUT_OF_ORDER


def phantom(run: Run, chance: random.Random) -> Breach:
    """A message nobody published reaches one reader."""
    given = _reader(run, chance).given
    given.append(replace(given[-1], id=given[-1].id + 100_000, seq=given[-1].seq + 1, digest=7))
    return Breach.PHANTOM


def phantom_in_log(run: Run, chance: random.Random) -> Breach:
    """A message nobody published is stored and given to everyone."""
    last = max((s for s in run.stored if s.channel == "chat.room0"), key=lambda s: s.seq)
    forged = Said(run.stored[-1].id + 1, "chat.room0", last.seq + 1, 7)
    for reader in run.readers:
        if any(said.channel == "chat.room0" for said in reader.given):
            reader.given.append(forged)
    return Breach.PHANTOM


def stranger(run: Run, chance: random.Random) -> Breach:
    """A reader of one channel is given a message of another."""
    fit = [
        r
        for r in run.live()
        if len(r.patterns) == 1 and "*" not in r.patterns[0] and ">" not in r.patterns[0]
    ]
    reader = chance.choice(fit)
    foreign = chance.choice(
        [s for s in run.stored if s.channel != reader.patterns[0] and s.id > reader.start]
    )
    reader.given = sorted([*reader.given, foreign], key=lambda said: said.id)
    return Breach.PHANTOM


def wrong_channel(run: Run, chance: random.Random) -> Breach:
    """A message arrives under another channel's name."""
    given = _reader(run, chance).given
    at = chance.randrange(len(given))
    given[at] = replace(given[at], channel="chat.elsewhere")
    return Breach.DISAGREE


def wrong_payload(run: Run, chance: random.Random) -> Breach:
    given = _reader(run, chance).given
    at = chance.randrange(len(given))
    given[at] = replace(given[at], digest=8)
    return Breach.DISAGREE


def wrong_payload_everywhere(run: Run, chance: random.Random) -> Breach:
    """The store spoiled a message: all readers agree, but it is not what was published."""
    victim = chance.choice(run.stored).id
    for reader in run.readers:
        reader.given = [replace(s, digest=9) if s.id == victim else s for s in reader.given]
    run.tries = [(c, d, k, o, 0, 0) for c, d, k, o, _, _ in run.tries]
    return Breach.PHANTOM


def two_payloads(run: Run, chance: random.Random) -> Breach:
    """What the publisher was told of an id is not what readers find under it."""
    confirmed = [n for n, t in enumerate(run.tries) if t[3] is Outcome.OK]
    at = chance.choice(confirmed)
    channel, _, key, outcome, message_id, seq = run.tries[at]
    run.tries[at] = (channel, 11, key, outcome, message_id, seq)
    return Breach.DISAGREE


def seq_hole(run: Run, chance: random.Random) -> Breach:
    """The database left out a seq; ids and payloads are all there."""
    channel = max(run.stored, key=lambda s: s.seq).channel
    after = chance.randint(1, max(s.seq for s in run.stored if s.channel == channel))
    for reader in run.readers:
        reader.given = [
            replace(s, seq=s.seq + 1) if s.channel == channel and s.seq >= after else s for s in reader.given
        ]
    run.tries = [(c, d, k, o, 0, 0) for c, d, k, o, _, _ in run.tries]
    return Breach.HOLES


def seq_twice(run: Run, chance: random.Random) -> Breach:
    """Two messages of a channel carry one seq."""
    channel = max(run.stored, key=lambda s: s.seq).channel
    after = chance.randint(2, max(s.seq for s in run.stored if s.channel == channel))
    for reader in run.readers:
        reader.given = [
            replace(s, seq=s.seq - 1) if s.channel == channel and s.seq >= after else s for s in reader.given
        ]
    run.tries = [(c, d, k, o, 0, 0) for c, d, k, o, _, _ in run.tries]
    return Breach.DISAGREE


def refused_and_stored(run: Run, chance: random.Random) -> Breach:
    spared = [n for n, t in enumerate(run.tries) if t[3] is Outcome.OK and t[2] is None]
    at = chance.choice(spared)
    channel, value, key, _, _, _ = run.tries[at]
    run.tries[at] = (channel, value, key, Outcome.FAIL, 0, 0)
    return Breach.DISHONEST


FAULTS: list[Fault] = [
    lost_first, lost_middle, lost_last, lost_everything, lost_from_log, lost_before_seq, doubled_near,
    doubled_late, stored_twice, key_with_two_ids, swapped_within, swapped_across, phantom, phantom_in_log,
    stranger, wrong_channel, wrong_payload, wrong_payload_everywhere, two_payloads, seq_hole, seq_twice,
    refused_and_stored,
]  # fmt: skip


def _verdict(run: Run) -> Verdict:
    return check(run.history())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_clean_run_passes(seed: int) -> None:
    verdict = _verdict(sample(seed))
    assert verdict.ok, verdict.report()
    assert verdict.exit_code == 0


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_every_planted_fault_is_found_and_named(fault: Fault) -> None:
    for seed in SEEDS:
        run = sample(seed)
        breach = fault(run, random.Random(seed + 1))
        verdict = _verdict(run)
        assert verdict.counts[breach] > 0, f"seed {seed}: {verdict.report()}"
        assert verdict.exit_code == 1


@pytest.mark.parametrize("fault", [f for f in FAULTS if f not in (lost_from_log, lost_before_seq)],
                         ids=lambda fault: fault.__name__)  # fmt: skip
def test_most_faults_show_without_a_drain(fault: Fault) -> None:
    for seed in SEEDS:
        run = sample(seed)
        run.readers = run.live()
        fault(run, random.Random(seed + 1))
        assert not _verdict(run).ok, f"seed {seed}"


@pytest.mark.parametrize("seed", SEEDS)
def test_an_announced_gap_is_no_loss_and_a_silent_one_is(seed: int) -> None:
    run = sample(seed)
    reader = next(r for r in run.live() if len(r.patterns) == 1 and len(r.given) > 5)
    reader.given = reader.given[3:]
    silent = _verdict(run)
    reader.gaps.append(Gap(reader.patterns[0], reader.given[0].seq, 3))
    assert silent.counts[Breach.LOST] == 3
    assert _verdict(run).ok


def test_a_single_publisher_per_channel_must_find_its_own_order() -> None:
    history = History(in_order=True)
    for value in (1, 2, 3):
        history.ok(history.invoke("c", value))
    cursor = history.cursor("fresh", ("c",), fresh=True)
    for seq, value in enumerate((1, 3, 2), 1):
        history.deliver(cursor, seq, "c", seq, value)
    assert check(history).counts[Breach.OUT_OF_ORDER] == 2


def test_an_absurd_seq_costs_no_time() -> None:
    history = History()
    cursor = history.cursor("one", ("c",))
    history.deliver(cursor, 1, "c", 2**52, 1)
    assert check(history).counts[Breach.HOLES] == 2**52 - 1


def test_the_report_names_counts_and_examples() -> None:
    run = sample(1)
    run.live()[0].given.pop()
    report = _verdict(run).report()
    assert "1 lost, 0 doubled, 0 out of order" in report
    assert "after its last" in report
