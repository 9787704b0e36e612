"""The lists that official clients keep: what the verdict on them decides, and the drill in its short form."""

from __future__ import annotations

import subprocess
import sys

import pytest

from load.children import CHECKOUT
from load.presence.__main__ import DISTURBED_S, Watch, judged
from load.presence.lists import Shown, compare, judge
from load.verdict import Breach, NoVerdictError

HERE = ["a", "b", "c"]


def _shown(*lists: list[str] | None) -> list[Shown]:
    return [Shown(number, HERE[number], listed) for number, listed in enumerate(lists)]


def test_lists_of_exactly_those_who_are_connected_are_right() -> None:
    found = compare(_shown(HERE, ["c", "b", "a"], HERE), {0, 1, 2})
    assert found.right
    assert judge(found, 1.0, 30.0, "it").ok


@pytest.mark.parametrize(
    ("shown", "phantoms", "missing"),
    [
        (_shown(HERE, [*HERE, "d"], HERE), 1, 0),
        (_shown(HERE, HERE, ["b", "c"]), 0, 1),
        (_shown(HERE, ["a", "b", "d"], HERE), 1, 1),
        (_shown(HERE, HERE, []), 0, 3),
        (_shown(HERE, HERE, None), 0, 3),
    ],
    ids=["a phantom", "itself missing", "one for another", "an empty list", "no list"],
)
def test_one_wrong_list_of_many_is_a_breach(shown: list[Shown], phantoms: int, missing: int) -> None:
    found = compare(shown, {0, 1, 2})
    assert not found.right
    assert (found.wrong, found.phantoms, found.missing) == (1, phantoms, missing)
    verdict = judge(found, 1.0, 30.0, "it")
    assert verdict.exit_code == 1
    counted = {Breach.SLOW: 1, Breach.PHANTOM: phantoms, Breach.MISSING: missing}
    assert verdict.counts == {breach: count for breach, count in counted.items() if count}


def test_a_list_that_names_a_client_by_its_former_id_is_wrong() -> None:
    shown = [Shown(0, "a2", ["a2", "b"]), Shown(1, "b", ["a", "b"])]
    found = compare(shown, {0, 1})
    assert (found.wrong, found.phantoms, found.missing) == (1, 1, 1)
    assert not judge(found, 1.0, 30.0, "it").ok


def test_lists_without_a_client_that_is_to_be_there_are_not_right() -> None:
    """All lists agree with those who are connected, and one has not come back."""
    shown = [Shown(0, "a", ["a", "b"]), Shown(1, "b", ["a", "b"]), Shown(2, "", ["a", "b"])]
    assert compare(shown, {0, 1}).right
    for awaited in ({0, 1, 2}, {0, 1, 3}):
        found = compare(shown, awaited)
        assert (found.away, found.wrong) == (1, 0)
        assert judge(found, 1.0, 30.0, "it").exit_code == 1


@pytest.mark.parametrize(("right_after", "ok"), [(30.0, True), (30.5, False), (None, False)])
def test_lists_must_be_right_in_time(right_after: float | None, ok: bool) -> None:
    assert judge(compare(_shown(HERE, HERE, HERE), {0, 1, 2}), right_after, 30.0, "it").ok == ok


def test_a_phantom_in_the_last_look_is_a_breach_although_lists_were_right_before() -> None:
    watch = Watch()
    watch.see(compare(_shown(HERE, HERE, HERE), {0, 1, 2}))
    assert judged(watch, "it").ok
    watch.see(compare(_shown(HERE, [*HERE, "d"], HERE), {0, 1, 2}))
    assert judged(watch, "it").counts == {Breach.SLOW: 1, Breach.PHANTOM: 1}


def test_wrong_lists_on_a_disturbed_machine_give_no_verdict() -> None:
    watch = Watch()
    watch.began -= 2 * DISTURBED_S
    watch.see(compare(_shown(HERE, [*HERE, "d"], HERE), {0, 1, 2}))
    with pytest.raises(NoVerdictError):
        judged(watch, "it")
    watch.see(compare(_shown(HERE, HERE, HERE), {0, 1, 2}))
    assert judged(watch, "it").ok


@pytest.mark.drill
@pytest.mark.realtime("All lists must be right within 30 s.")
def test_all_lists_are_right_after_a_worker_was_killed() -> None:
    command = [sys.executable, "-m", "load.presence", "--clients", "100", "--leaving", "20", "--seed", "7"]
    answer = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "clean: 0 phantom, 0 missing, 0 too slow" in answer.stdout
