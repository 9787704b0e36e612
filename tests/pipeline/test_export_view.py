"""The table `latest` beside an export: what the messages are after all changes, whenever a run was killed."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gapless_spark
import pytest
from gapless_spark.errors import BadOption
from gapless_spark.export.command import _beside
from gapless_spark.export.errors import FolderTaken, OtherExport
from gapless_spark.export.job import Export
from gapless_spark.export.options import ExportOptions, Shape
from gapless_spark.export.progress import Silent
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (as everybody writes it)

from tests.pipeline.conftest import Log

pytestmark = pytest.mark.spark

Run = Callable[..., None]


@pytest.fixture
def run(log: Log, tmp_path: Path) -> Run:
    """Runs the export of the test's log into `tmp_path / "out"`, with the table in `tmp_path / "latest"`."""

    def export(shape: Shape | None = None, place: str = "latest", spark: Any = None) -> None:
        options = ExportOptions(log.url, tmp_path / "out", shape or Shape(), latest=tmp_path / place)
        Export(options, spark or (lambda: log.spark), Silent(), threading.Event()).run()

    return export


def rows(frame: DataFrame) -> list[Any]:
    """All of a table, by id."""
    maps = {name: F.to_json(name) for name in ("annotations", "headers")}
    found: list[Any] = frame.withColumns(maps).orderBy("id").collect()
    return found


def shown(log: Log, tmp_path: Path) -> list[Any]:
    return rows(log.spark.read.parquet(str(tmp_path / "latest" / "current")))


def expected(log: Log) -> list[Any]:
    return rows(gapless_spark.latest(log.read(binary="true", changes="true")))


def change(log: Log, channel: str, target: int, action: str, **members: object) -> None:
    named = "".join(f", {name} => {value!r}" for name, value in members.items())
    log.owner.execute(
        f"select gapless.publish('{channel}', '{{\"n\": 1}}', target => {target}::bigint,"
        f" action => '{action}'{named})"
    )


@pytest.mark.drill
@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("format_", ["parquet", "delta", "iceberg"])
def test_further_runs_bring_the_table_up_to_date(
    log: Log, run: Run, tmp_path: Path, format_: Any, by_channel: bool
) -> None:
    shape = Shape(format_, by_channel)
    ids = log.owner.append("Chat:1", ["1", b"\x01", '"x"', "2"])
    log.owner.append("other", ["7"])
    run(shape)
    assert shown(log, tmp_path) == expected(log)
    for _ in range(2):
        change(log, "Chat:1", ids[0], "update")
        change(log, "Chat:1", ids[1], "delete", through=ids[2])
        change(log, "Chat:1", ids[3], "annotate", annotation="like", mode="total", key="up")
        run(shape)
        assert shown(log, tmp_path) == expected(log)
    found = {row.id: row for row in shown(log, tmp_path)}
    assert [found[id_].deleted for id_ in ids] == [False, True, True, False]
    assert json.loads(found[ids[3]].annotations) == {"like": {"total": 2, "keys": {"up": 2}}}
    assert len(list((tmp_path / "latest").glob("at-*"))) == 2


def test_without_new_messages_spark_is_not_started(log: Log, run: Run, tmp_path: Path) -> None:
    run()
    assert shown(log, tmp_path) == [], "a log without messages has a table without rows"
    log.owner.append("a", ["1"])
    run()
    before = (tmp_path / "latest" / "current").readlink()

    def never() -> None:
        raise AssertionError("Spark is started")

    run(spark=never)
    assert (tmp_path / "latest" / "current").readlink() == before


@pytest.mark.parametrize("step", [0, pytest.param(1, marks=pytest.mark.drill), 2])
def test_killed_at_any_step_the_table_stays_whole(
    log: Log, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    (first,) = log.owner.append("a", ["1"])
    run()
    before = shown(log, tmp_path)
    change(log, "a", first, "update")
    latest = tmp_path / "latest"
    real, calls = os.replace, []

    def killed(source: Any, target: Any) -> None:
        if Path(target).parent == latest:
            calls.append(target)
            if len(calls) > step:
                raise KeyboardInterrupt
        real(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", killed)
        if step < 2:
            with pytest.raises(KeyboardInterrupt):
                run()
            assert shown(log, tmp_path) == before
        else:
            run()
    run()
    assert shown(log, tmp_path) == expected(log) != before
    assert {path.name[:3] for path in latest.iterdir()} == {"at-", "cur", "exp"}


def test_folders_that_are_refused(log: Log, run: Run, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.txt").touch()
    with pytest.raises(FolderTaken, match="something else"):
        run(place="taken")
    run()
    (tmp_path / "latest" / "export.json").write_text('{"export_id": "another"}')
    with pytest.raises(OtherExport, match="another export"):
        run()
    out = tmp_path / "out"
    for place, follow, said in (
        (str(out / "in"), False, "must not lie in one another"),
        (str(tmp_path), False, "must not lie in one another"),
        (str(tmp_path / "a*"), False, r"\* cannot be in the name"),
        (str(tmp_path / "b"), True, "without --follow"),
    ):
        with pytest.raises(BadOption, match=said):
            _beside(place, out, follow)
    assert _beside(None, out, True) is None


def test_an_export_from_before_changes_goes_on_and_has_no_table(log: Log, tmp_path: Path) -> None:
    shape = Shape(changes=False)
    log.owner.append("a", ["1"])
    options = ExportOptions(log.url, tmp_path / "out", shape)
    for _ in range(2):
        Export(options, lambda: log.spark, Silent(), threading.Event()).run()
        log.owner.append("a", ["2"])
    files = [str(path) for path in (tmp_path / "out").glob("date=*/*.parquet")]
    assert "target" not in log.spark.read.parquet(*files).columns
    wanted = ExportOptions(log.url, tmp_path / "out", shape, latest=tmp_path / "latest")
    with pytest.raises(OtherExport, match="without the columns of changes"):
        Export(wanted, lambda: log.spark, Silent(), threading.Event()).run()
