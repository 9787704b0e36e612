"""Checks a run in which the primary changed: no id has two meanings, and all losses are reported."""

from __future__ import annotations

from itertools import pairwise

from load.failover.crowd import Crowd, Reader
from load.sequence import check_given
from load.verdict import Breach, Verdict

TOLD = (Breach.LOST, Breach.DOUBLED, Breach.OUT_OF_ORDER, Breach.DISAGREE, Breach.UNTOLD)


def check(crowd: Crowd, kept: set[int]) -> Verdict:
    """Check the run. `kept` are the ids in the log at the end; confirmed ones may be lost with the old
    primary."""
    verdict, memory = Verdict(TOLD), crowd.memory
    for id_, numbers in sorted(memory.meanings.items()):
        verdict.add(Breach.DISAGREE, f"id {id_} stood for {sorted(numbers)}", len(numbers) - 1)
    _add(verdict, Breach.LOST, "the member was not given", kept - memory.worked)
    lost = set(memory.meanings) - kept
    for reader in crowd.readers:
        _check_reader(reader, kept, lost, verdict)
    return verdict


def _check_reader(reader: Reader, kept: set[int], lost: set[int], verdict: Verdict) -> None:
    seen: set[int] = set()
    taken_back: set[int] = set()
    # Ids ascend within one history; another one may go on below, and may have what the last one lacked.
    gaps = [None, *reader.told]
    for gap, (begin, end) in zip(gaps, pairwise([0, *reader.parted, len(reader.got)]), strict=True):
        if gap is not None:
            taken_back |= {id_ for id_ in seen if gap[0] <= id_ <= gap[1]}
        part = check_given(f"reader {reader.name}", reader.got[begin:end], kept | lost, verdict)
        _add(verdict, Breach.DOUBLED, f"reader {reader.name} got again", part & (seen - taken_back))
        seen |= part
        taken_back -= part
    owed = {id_ for id_ in kept if id_ > (reader.began or 0)} if reader.whole else set()
    _add(verdict, Breach.LOST, f"reader {reader.name} lacks", owed - seen)
    gone = [id_ for id_ in lost & seen if not any(first <= id_ <= last for first, last in reader.told)]
    _add(verdict, Breach.UNTOLD, f"reader {reader.name} saw a lost message, and got no gap:", set(gone))


def _add(verdict: Verdict, breach: Breach, what: str, ids: set[int]) -> None:
    if ids:
        verdict.add(breach, f"{what} {min(ids)}", len(ids))
