"""The storm over the export in its short form; the whole one is `python -m load.spark.export`."""

from __future__ import annotations

import pytest

from load.spark.export import Outcome, main


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_an_export_is_exact_though_it_is_killed(capfd: pytest.CaptureFixture[str]) -> None:
    code = main(["--short", "--format", "parquet", "--seed", "3"])
    said = capfd.readouterr().out
    assert code == 0, said
    assert "parquet: exact: " in said


def test_the_verdict_notices() -> None:
    good = Outcome(stored=5, looks=1, readers={"a": (5, 5), "b": (5, 5)})
    assert good.ok
    for bad in (
        Outcome(stored=5, looks=1, readers={"a": (6, 5)}),
        Outcome(stored=5, looks=1, readers={"a": (4, 4)}, missing=1),
        Outcome(stored=5, looks=1, readers={"a": (5, 5)}, doubled=1),
        Outcome(stored=5, looks=1, readers={"a": (5, 5)}, vanished=1),
        Outcome(stored=5, looks=1, readers={"a": (5, 5)}, broken=1),
        Outcome(stored=5, looks=0, readers={"a": (5, 5)}),
    ):
        assert not bad.ok
