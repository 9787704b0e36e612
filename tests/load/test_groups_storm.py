"""What members write down becomes the history that is judged; and one short storm, for real."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from load.children import CHECKOUT
from load.groups import archive, notes
from load.groups.checker import check
from load.groups.history import Groups, Session
from load.groups.plan import CREWS, Face
from load.history import Outcome
from tests.load.groups_sample import play
from tests.patience import PATIENCE_S


def test_a_kept_history_is_the_same_and_judged_the_same(tmp_path: Path) -> None:
    run, _ = play(3)
    archive.write(run, tmp_path / "history.jsonl.gz")
    again = archive.read(tmp_path / "history.jsonl.gz")
    assert again == run
    assert check(again).report() == check(run).report()


def _written(folder: Path, *events: dict[str, object]) -> Groups:
    """What the members' files say, of a process with the number 7."""
    notes.Notes(folder / "member-000007.jsonl").write(*events)
    history = Groups()
    notes.read(folder, history, {})
    return history


_SESSION = {"e": "session", "t": 5, "s": 1, "g": "orders", "m": "orders/0", "stream": True, "limit": 3}
_DELIVERY = {"e": "dlv", "t": 9, "s": 1, "id": 4, "ch": "c", "seq": 2, "key": None, "a": 1, "r": "x", "d": 99}
_ASK = {"e": "ask", "t": 10, "n": 1, "k": "ack", "g": "orders", "r": ["x", "y"], "dead": False}


def test_sessions_that_are_open_when_a_member_is_killed_end_then(tmp_path: Path) -> None:
    history = _written(tmp_path, _SESSION, {"e": "told", "s": 1}, _DELIVERY, {"e": "killed", "t": 20})
    session = Session(7_000_001, "orders", "orders/0", True, 3, 5, 20, killed=True, told=True)
    assert history.sessions == {7_000_001: session}
    assert [given.message_id for given in history.deliveries] == [4]


def test_answers_go_to_their_requests_and_none_means_unknown(tmp_path: Path) -> None:
    answers = [{"status": "acked"}, {"status": "unknown"}]
    said = {"e": "said", "t": 12, "n": 1, "results": answers}
    lost, refused = {**_ASK, "n": 2}, {**_ASK, "n": 3}
    history = _written(tmp_path, _SESSION, _ASK, lost, said, refused, {"e": "refused", "t": 13, "n": 3})
    ok, info, fail = Outcome.OK, Outcome.INFO, Outcome.FAIL
    assert [request.outcome for request in history.requests] == [ok, ok, info, info, fail, fail]
    assert [request.status for request in history.requests[:2]] == ["acked", "unknown"]


def test_a_line_that_a_killed_member_began_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "member-000007.jsonl").write_bytes(b'{"e":"pause","m":"a","from":1,"to":2}\n{"e":"dlv","t"')
    history = Groups()
    notes.read(tmp_path, history, {})
    assert len(history.pauses) == 1


def test_times_of_the_service_are_turned_into_times_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a moment when the machine has run for a hundred seconds and a half."""
    now = datetime.fromisoformat("2026-01-02T03:04:05.500000Z").timestamp()
    clock = SimpleNamespace(monotonic_ns=lambda: 100_500_000_000, time_ns=lambda: round(now * 1e9))
    monkeypatch.setattr(notes, "time", clock)
    assert notes.moment("2026-01-02T03:04:05.000000Z") == 100_000_000_000
    assert notes.moment("2026-01-02T03:04:07.250000Z") == 102_250_000_000


def test_the_storm_mixes_what_there_is() -> None:
    groups = [crew.group for crew in CREWS]
    assert {group.ordering for group in groups} == {"key", "channel", "none"}
    assert any(group.ttl_ns for group in groups)
    assert any(group.dead_letter for group in groups)
    assert all(len(crew.faces) == 4 and 3 <= crew.limit <= 5 for crew in CREWS)
    members = [face for crew in CREWS for face in crew.faces]
    assert members.count(Face.SOCKET) == len(members) / 3
    assert min(members.count(face) for face in Face) > 4


@pytest.mark.drill
def test_a_short_storm_breaks_no_promise() -> None:
    command = [sys.executable, "-m", "load.groups", "storm", "--minutes", "0.4", "--fault-every", "6"]
    done = subprocess.run(
        command, cwd=CHECKOUT, capture_output=True, text=True, timeout=5 * PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
