"""What must hold after the primary has changed: no id has two meanings, and losses are told."""

from __future__ import annotations

from load.failover.crowd import Crowd, Reader
from load.sequence import check_given
from load.verdict import Breach, Verdict

TOLD = (Breach.LOST, Breach.DOUBLED, Breach.OUT_OF_ORDER, Breach.DISAGREE, Breach.UNTOLD)


def check(crowd: Crowd, kept: set[int]) -> Verdict:
    """`kept` are the ids that the log holds in the end; confirmed ones may be lost with the old primary."""
    verdict, memory = Verdict(TOLD), crowd.memory
    for id_, numbers in sorted(memory.meanings.items()):
        verdict.add(Breach.DISAGREE, f"id {id_} stood for {sorted(numbers)}", len(numbers) - 1)
    _add(verdict, Breach.LOST, "the member was not given", kept - memory.worked)
    lost = set(memory.meanings) - kept
    for reader in crowd.readers:
        _check_reader(reader, kept, lost, verdict)
    return verdict


def _check_reader(reader: Reader, kept: set[int], lost: set[int], verdict: Verdict) -> None:
    seen = check_given(f"reader {reader.name}", reader.got, kept | lost, verdict)
    owed = {id_ for id_ in kept if id_ > (reader.began or 0)} if reader.whole else set()
    _add(verdict, Breach.LOST, f"reader {reader.name} lacks", owed - seen)
    gone = [id_ for id_ in lost & seen if not any(first <= id_ <= last for first, last in reader.told)]
    _add(verdict, Breach.UNTOLD, f"reader {reader.name} saw, and was not told that it is lost,", set(gone))


def _add(verdict: Verdict, breach: Breach, what: str, ids: set[int]) -> None:
    if ids:
        verdict.add(breach, f"{what} {min(ids)}", len(ids))
