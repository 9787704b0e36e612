"""The storm over the export in its short form; the whole one is `python -m load.spark.export`."""

from __future__ import annotations

import pytest

from load.spark.export import compare, main
from load.verdict import Breach, Verdict


@pytest.mark.drill
@pytest.mark.spark
def test_an_export_is_exact_though_it_is_killed(capfd: pytest.CaptureFixture[str]) -> None:
    code = main(["--short", "--format", "parquet", "--seed", "3"])
    said = capfd.readouterr().out
    assert code == 0, said
    assert "clean: 0 lost, 0 doubled, 0 out of order" in said


@pytest.mark.parametrize(
    ("ids", "breach"),
    [([1, 2, 3, 3], Breach.DOUBLED), ([1, 3], Breach.LOST), ([1, 2, 3, 4], Breach.PHANTOM)],
)
def test_what_a_reader_finds_is_held_against_the_database(ids: list[int], breach: Breach) -> None:
    whole, spoiled = Verdict(), Verdict()
    compare("pyarrow", [3, 1, 2], {1, 2, 3}, whole)
    compare("pyarrow", ids, {1, 2, 3}, spoiled)
    assert whole.ok
    assert spoiled.counts == {breach: 1}
