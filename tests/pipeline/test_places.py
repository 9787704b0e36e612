"""Paths and addresses, as they are typed."""

from __future__ import annotations

from pathlib import Path

import pytest
from gapless_spark.errors import BadOption
from gapless_spark.places import check_address, local, local_or_address, scheme_of
from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("place", "path"),
    [
        ("/data/x", "/data/x"),
        ("x", "{here}/x"),
        ("a:b", "{here}/a:b"),
        ("./s3:/x", "{here}/s3:/x"),
        ("file:/data/x", "/data/x"),
        ("file:///data/x", "/data/x"),
        ("FILE:///data/a%20b%C3%A9", "/data/a bé"),
        ("file://localhost/data/x", "/data/x"),
    ],
)
def test_paths_and_files_are_of_this_machine(place: str, path: str) -> None:
    assert local(place, "--to") == Path(path.replace("{here}", str(Path.cwd())))
    assert local_or_address(place, "--tables") == str(local(place, "--tables"))


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("s3://bucket/x", "--to: s3: is not served"),
        ("s3a://bucket/x", "--to: s3a: is not served"),
        ("S3:/bucket/x", "--to: s3: is not served"),
        ("gs://bucket", "--to: gs: is not served"),
        ("hdfs://name/x", "--to: hdfs: is not served"),
        ("abfss://box@account.example/x", "--to: abfss: is not served"),
        ("https://host/x", "--to: https: is not served"),
        ("file://host/x", "--to: file://host/x names no folder of this machine"),
        ("file:x", "--to: file:x names no folder"),
        ("file:", "--to: file: names no folder"),
        ("file:///a?b", "has a ? or #"),
        ("file:///a%00b", "a zero character"),
        ("", "--to: is empty"),
    ],
)
def test_what_is_no_folder_of_this_machine_is_refused(place: str, says: str) -> None:
    with pytest.raises(BadOption) as caught:
        local(place, "--to")
    assert says in str(caught.value)


def test_a_scheme_is_what_stands_before_a_slash() -> None:
    assert [scheme_of(place) for place in ("s3://x", "a:b", "/x", "", "file:x", "x/s3://y")] == [
        "s3",
        None,
        None,
        None,
        "file",
        None,
    ]


@pytest.mark.spark
def test_a_scheme_that_spark_does_not_know_is_refused_before_the_work(spark: SparkSession) -> None:
    for place in ("/data", "file:///data", "hdfs://name/x"):
        check_address(spark, place, "--from")
    with pytest.raises(BadOption, match="--from: s3: is not served: this Spark has no file system"):
        check_address(spark, "s3://bucket/x", "--from")
