"""On a real cluster, one standalone master and two workers, and through Spark Connect: all on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from load.spark.cluster import Cluster, cluster, connect_server
from tests.pipeline.conftest import Log
from tests.support import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.drill]


@pytest.fixture(scope="module")
def two_workers() -> Iterator[Cluster]:
    with cluster(workers=2, memory="768m") as running:
        yield running


def run(*command: str) -> str:
    """A Python program beside the tests; what it printed."""
    # Executors run this Python too, which has pyarrow and the driver of Postgres.
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "pipeline"), "PYSPARK_PYTHON": sys.executable}
    answer = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


def exported(folder: Path) -> list[int]:
    """The ids in an export, sorted."""
    rows = ds.dataset(str(folder), format="parquet").to_table(columns=["id"])
    return sorted(rows.column("id").to_pylist())


def test_a_job_of_ones_own(two_workers: Cluster, plain_log: Log) -> None:
    """Executors have the package from the driver, and nothing of ours is installed on them."""
    for number in range(3):
        plain_log.owner.append(f"in.{number}", [json.dumps(n) for n in range(10 * (number + 1))])
    plain_log.owner.append("elsewhere", ["1"])
    program = str(Path(__file__).with_name("on_cluster.py"))
    printed = run(program, two_workers.master, plain_log.url)
    assert "read 60 on 2 executors" in printed
    out = plain_log.owner.fetch(
        "select m.seq, m.data::text from gapless.messages m join gapless.channels c on c.id = m.channel_id"
        " where c.name = 'out' order by m.seq"
    )
    assert [seq for seq, _ in out] == [1, 2, 3]
    assert {tuple(json.loads(data).values()) for _, data in out} == {("in.0", 10), ("in.1", 20), ("in.2", 30)}


def test_an_export(two_workers: Cluster, plain_log: Log, tmp_path: Path) -> None:
    ids = plain_log.owner.append("a", [json.dumps({"n": n}) for n in range(5000)])
    export = ["-m", "gapless_spark", "export", "--to", str(tmp_path / "to"), "--database-url", plain_log.url]
    export += ["--master", two_workers.master, "--executor-memory", "512m", "--tasks", "4", "--quiet"]
    run(*export)
    assert exported(tmp_path / "to") == ids


@pytest.fixture(scope="module")
def connect() -> Iterator[str]:
    with connect_server() as address:
        yield address


def test_an_export_through_spark_connect(connect: str, plain_log: Log, tmp_path: Path) -> None:
    """The driver has no Java of its own; its tasks run where the server is."""
    ids = plain_log.owner.append("a", [json.dumps({"n": n}) for n in range(5000)])
    export = ["-m", "gapless_spark", "export", "--to", str(tmp_path / "to"), "--database-url", plain_log.url]
    export += ["--master", connect, "--tasks", "4", "--quiet"]
    run(*export)
    ids += plain_log.owner.append("b", ["1"] * 100)
    run(*export)
    assert exported(tmp_path / "to") == ids


def test_a_job_of_ones_own_through_spark_connect(connect: str, plain_log: Log) -> None:
    plain_log.owner.append("in.a", ["1", "2", "3"])
    run(str(Path(__file__).with_name("on_connect.py")), connect, plain_log.url)
    out = plain_log.owner.fetch(
        "select m.data::text from gapless.messages m join gapless.channels c on c.id = m.channel_id"
        " where c.name = 'out' order by m.seq"
    )
    assert sorted(int(data) for (data,) in out) == [10, 20, 30]
