"""The checker finds each mistake made with messages that change others, and nothing in a clean run."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from load.checker import check
from load.fold import Fold
from load.history import Change, History, Shown, State
from load.verdict import Breach
from tests.load.sample import Reader, Run, sample


@pytest.fixture(
    params=[pytest.param(range(8), id="few"), pytest.param(range(8, 40), id="more", marks=pytest.mark.drill)]
)
def seeds(request: pytest.FixtureRequest) -> range:
    """What a test does for each one."""
    seeds: range = request.param
    return seeds


Fault = Callable[[Run, random.Random], Breach]


def _given(run: Run, chance: random.Random) -> tuple[Reader, int]:
    """A live reader, and the place of a change that it was given with its target."""
    fit = []
    for reader in run.live():
        ids = {said.id for said in reader.given}
        places = [n for n, s in enumerate(reader.given) if s.change and s.change.target in ids]
        fit += [(reader, place) for place in places]
    return chance.choice(fit)


def lost(run: Run, chance: random.Random) -> Breach:
    reader, place = _given(run, chance)
    reader.given.pop(place)
    return Breach.LOST


def doubled(run: Run, chance: random.Random) -> Breach:
    reader, place = _given(run, chance)
    reader.given.insert(chance.randint(place, len(reader.given)), reader.given[place])
    return Breach.DOUBLED


def before_its_target(run: Run, chance: random.Random) -> Breach:
    reader, place = _given(run, chance)
    change = reader.given.pop(place)
    assert change.change is not None
    target = next(n for n, said in enumerate(reader.given) if said.id == change.change.target)
    reader.given.insert(target, change)
    return Breach.EARLY


def without_its_target(run: Run, chance: random.Random) -> Breach:
    reader, place = _given(run, chance)
    change = reader.given[place].change
    reader.given = [said for said in reader.given if change is None or said.id != change.target]
    return Breach.EARLY


def stored_before_its_target(run: Run, chance: random.Random) -> Breach:
    """Everybody got it in this order, so that only the log shows it."""
    change = chance.choice([said for said in run.stored if said.change and not said.change.through])
    later = max(said.id for said in run.stored if said.channel == change.channel) + 1
    assert change.change is not None
    _replace_change(run, change.id, change.change._replace(target=later))
    return Breach.EARLY


def of_another_channel(run: Run, chance: random.Random) -> Breach:
    change = chance.choice([said for said in run.stored if said.change])
    foreign = [s.id for s in run.stored if s.channel != change.channel and s.id < change.id]
    assert change.change is not None
    _replace_change(run, change.id, change.change._replace(target=chance.choice(foreign)))
    return Breach.EARLY


def of_a_change(run: Run, chance: random.Random) -> Breach:
    changes = [said for said in run.stored if said.change and not said.change.is_original]
    pairs = [(a, b) for a in changes for b in changes if a.channel == b.channel and a.id < b.id]
    target, change = chance.choice(pairs)
    assert change.change is not None
    _replace_change(run, change.id, change.change._replace(target=target.id))
    return Breach.EARLY


def _replace_change(run: Run, message_id: int, change: Change) -> None:
    run.expected.pop(message_id, None)

    def spoil(history: History) -> None:
        history.log.changes[message_id] = change

    run.spoil = spoil


def an_old_version(run: Run, chance: random.Random) -> Breach:
    message_id = chance.choice(list(run.expected))
    run.expected[message_id] -= 1
    return Breach.OUTDATED


STATES: dict[str, Callable[[State], State]] = {
    "version": lambda state: state._replace(version=state.version + 1),
    "data": lambda state: state._replace(data=state.data + 1),
    "deleted": lambda state: state._replace(deleted=not state.deleted),
    "replies": lambda state: state._replace(replies=state.replies + 1),
    "annotations": lambda state: state._replace(annotations='{"c":{"total":1}}'),
}


def _shown(history: History, chance: random.Random, *, is_view: bool) -> tuple[Shown, int]:
    fit = [shown for shown in history.shown if shown.is_view == is_view and shown.ids]
    shown = chance.choice(fit)
    return shown, chance.randrange(len(shown.ids))


def test_a_clean_run_with_changes_passes(seeds: range) -> None:
    for seed in seeds:
        run = sample(seed)
        assert sum(said.change is not None for said in run.stored) > 30
        verdict = check(run.history())
        assert verdict.ok, f"seed {seed}: {verdict.report()}"
        assert "0 before their targets, 0 folded wrongly, 0 views wrong" in verdict.report()


@pytest.mark.parametrize(
    "fault",
    [lost, doubled, before_its_target, without_its_target, stored_before_its_target, of_another_channel,
     of_a_change, an_old_version],
    ids=lambda fault: fault.__name__,
)  # fmt: skip
def test_every_fault_is_found_and_named(fault: Fault, seeds: range) -> None:
    for seed in seeds:
        run = sample(seed)
        breach = fault(run, random.Random(seed))
        verdict = check(run.history())
        assert verdict.counts[breach] > 0, f"seed {seed}: {verdict.report()}"


@pytest.mark.parametrize("is_view", [False, True], ids=["reader", "service"])
@pytest.mark.parametrize("member", STATES)
def test_a_wrong_state_is_found(member: str, is_view: bool, seeds: range) -> None:
    for seed in seeds:
        history = sample(seed).history()
        shown, place = _shown(history, random.Random(seed), is_view=is_view)
        message_id = shown.ids.pop(place)
        state = shown.odd.get(message_id, history.states[message_id])
        history.show(shown, message_id, STATES[member](state))
        verdict = check(history)
        assert dict(verdict.counts) == {Breach.VIEW if is_view else Breach.FOLDED: 1}, verdict.report()


@pytest.mark.parametrize("member", STATES)
def test_a_wrong_state_that_all_agree_on_is_found(member: str) -> None:
    history = sample(1).history()
    message_id = random.Random(1).choice(list(history.states))
    history.states[message_id] = STATES[member](history.states[message_id])
    verdict = check(history)
    assert verdict.counts[Breach.VIEW] == 1, verdict.report()
    assert verdict.counts[Breach.FOLDED] > 1


@pytest.mark.parametrize("is_view", [False, True], ids=["reader", "service"])
def test_originals_that_are_missing_foreign_or_doubled_are_found(is_view: bool, seeds: range) -> None:
    for seed in seeds:
        for spoil in ("missing", "foreign", "change", "doubled"):
            history = sample(seed).history()
            shown, place = _shown(history, random.Random(seed), is_view=is_view)
            log = history.log
            state = history.states[shown.ids[place]]
            known = {each: log.names[log.channel[log.row[each]]] for each in log.row}
            mine = {known[each] for each in shown.ids}
            match spoil:
                case "missing":
                    shown.ids.pop(place)
                case "foreign":
                    others = [n for n in known if n not in shown.ids and log.is_original(n)]
                    if others:
                        history.show(shown, others[0], state)
                    else:
                        shown.ids.pop(place)
                case "change":
                    change = next(n for n in log.changes if known[n] in mine and not log.is_original(n))
                    history.show(shown, change, state)
                case _:
                    shown.ids.append(shown.ids[place])
            verdict = check(history)
            assert dict(verdict.counts) == {Breach.VIEW if is_view else Breach.FOLDED: 1}, verdict.report()


# --- readers' programs with one mistake each


class HidesOnlyTheTarget(Fold):
    def _targets(self, change: Change, message_id: int) -> list[int]:
        return super()._targets(change._replace(through=0), message_id)


class UpdatesWhatIsDeleted(Fold):
    def _change(self, original: Any, change: Change, data: int) -> None:
        super()._change(original, change, data)
        if change.action == "update":
            original.data = data


class KeepsTheDataOfTheDeleted(Fold):
    def _change(self, original: Any, change: Change, data: int) -> None:
        before = original.data
        super()._change(original, change, data)
        original.data = before if change.action == "delete" else original.data


class AppliesTwice(Fold):
    def _is_newer(self, original: Any, message_id: int) -> bool:
        return True


class KeepsUniqueOnes(Fold):
    def _annotate(self, times: Any, change: Change) -> None:
        if change.mode != "unique" or change.remove:
            super()._annotate(times, change)
        else:
            times[change[3:7]] = 1


class ForgetsWho(Fold):
    def _annotate(self, times: Any, change: Change) -> None:
        super()._annotate(times, change._replace(annotator=""))


class TakesNothingBack(Fold):
    def _annotate(self, times: Any, change: Change) -> None:
        if not change.remove:
            super()._annotate(times, change)


class CountsRepliesAsOriginalsOnly(Fold):
    def _change(self, original: Any, change: Change, data: int) -> None:
        if not change.is_original:
            super()._change(original, change, data)


@pytest.mark.parametrize(
    "careless",
    [HidesOnlyTheTarget, UpdatesWhatIsDeleted, KeepsTheDataOfTheDeleted, AppliesTwice, KeepsUniqueOnes,
     ForgetsWho, TakesNothingBack, CountsRepliesAsOriginalsOnly],
)  # fmt: skip
def test_a_reader_s_program_with_one_mistake_is_found(
    careless: type[Fold], monkeypatch: pytest.MonkeyPatch, seeds: range
) -> None:
    """In each run in which it matters, which are a quarter at least."""
    found = 0
    for seed in seeds:
        run = sample(seed, messages=500)
        for reader in run.live():
            # Some programs get everything once more after a cut of the connection.
            reader.given = [said for said in reader.given for _ in range(2)]
        right = _folded(run.history())
        with monkeypatch.context() as patched:
            patched.setattr("load.fold.Fold", careless)
            history = run.history()
        verdict = check(history)
        wrong = sum(a != b for a, b in zip(right, _folded(history), strict=True))
        assert (verdict.counts[Breach.FOLDED], verdict.counts[Breach.VIEW]) == (wrong, 0), verdict.report()
        found += wrong > 0
    assert 4 * found >= len(seeds)


def _folded(history: History) -> list[State]:
    """What all readers show, in one order."""
    readers = [shown for shown in history.shown if not shown.is_view]
    return [shown.odd.get(each, history.states[each]) for shown in readers for each in sorted(shown.ids)]


def test_what_comes_again_is_folded_once() -> None:
    run = sample(3)
    for reader in run.live():
        reader.given = [said for said in reader.given for _ in range(2)]
    verdict = check(run.history())
    assert verdict.counts[Breach.DOUBLED] > 0
    assert verdict.counts[Breach.FOLDED] == 0
