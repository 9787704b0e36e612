"""How a file is cut: the same from wherever it is taken up again."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
from gapless_cli.failures import Failure
from hypothesis import given, settings
from hypothesis import strategies as st

from app.cli.importing import batches as cutting
from app.cli.importing.batches import BEGINNING, Batch, batches
from app.cli.importing.source import Source, open_source
from app.cli.importing.state import Progress, StateFile

BAD = ["{", '{"channel": "c"}', "[1]"]
LINES = st.lists(
    st.one_of(
        st.integers(0, 10**6).map(lambda n: json.dumps({"channel": f"c.{n % 3}", "data": n})),
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=60).map(
            lambda text: json.dumps({"channel": "c.text", "data": text})
        ),
        st.sampled_from(["", "  ", *BAD]),
    ),
    max_size=40,
)


def source_of(text: str) -> Source:
    descriptor = os.memfd_create("lines")
    os.write(descriptor, text.encode())
    return Source("lines", io.FileIO(descriptor, "r+"))


@settings(max_examples=150, deadline=None)
@given(lines=LINES, at_most=st.integers(1, 7), size=st.integers(20, 400))
def test_every_cut_is_taken_up_exactly(lines: list[str], at_most: int, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutting, "MAX_MESSAGES", at_most)
        patch.setattr(cutting, "MAX_BYTES", size)
        source = source_of("\n".join(lines))
        cut = list(batches(source, None, BEGINNING))
        whole = [_essence(batch) for batch in cut]
        places = [BEGINNING, *(batch.end for batch in cut)]
        for taken_up, place in enumerate(places):
            rest = [_essence(batch) for batch in batches(source, None, place)]
            assert rest == whole[taken_up:]
        source.close()
    published = [message for batch in cut for message in json.loads(batch.body)["messages"]]
    assert [m["data"] for m in published] == [json.loads(line)["data"] for line in lines if '"data"' in line]
    assert sum(len(batch.bad) for batch in cut) == sum(lines.count(bad) for bad in BAD)


def _essence(batch: Batch) -> tuple[object, ...]:
    return batch.number, batch.body, batch.bad, batch.channels, batch.end


def test_a_file_that_grows_meanwhile_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"channel": "a", "data": 1}\n' * 2500)
    source = open_source(str(path), tmp_path)
    these = batches(source, None, BEGINNING)
    assert next(these).end.line == 1000
    with path.open("a") as file:
        file.write('{"channel": "a", "data": 2}\n')
    with pytest.raises(Failure, match="was changed while it was imported"):
        list(these)
    source.close()


def test_a_line_without_an_end_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.cli.importing.source.MAX_LINE_BYTES", 100)
    good = '{"channel": "a", "data": 1}\n'
    source = source_of(good + "x" * 5000 + "\n" + good + "y" * 100)
    [batch] = batches(source, None, BEGINNING)
    assert len(batch.channels) == 2
    assert [bad.line for bad in batch.bad] == [2, 4]
    assert "longer than" in batch.bad[0].why
    source.close()


def test_state_is_replaced_whole(tmp_path: Path) -> None:
    file = StateFile(tmp_path, "abc", "http://x")
    assert file.load() is None
    file.save(Progress("a", "http://x", "1", messages=5))
    file.save(Progress("a", "http://x", "1", messages=6))
    assert file.load() == Progress("a", "http://x", "1", messages=6)
    assert StateFile(tmp_path, "abc", "http://y").load() is None, "another server knows nothing of it"
    file.path.write_text("{")
    with pytest.raises(Failure, match="is damaged"):
        file.load()


def test_two_importers_of_one_file_do_not_run_together(tmp_path: Path) -> None:
    file = StateFile(tmp_path, "abc", "http://x")
    with file.alone(), pytest.raises(Failure, match="another process"), file.alone():
        pass
