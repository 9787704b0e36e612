"""Java's archive of classes: written by one run of a job, taken by the next, never half of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pyspark
import pytest
from gapless_spark import java

JARS = Path(pyspark.__file__).parent / "jars" / "*"


@pytest.fixture
def found(tmp_path: Path) -> java.Java:
    """The Java that Spark would run on, with a folder of its own."""
    return java.find(tmp_path)


def launched(found: java.Java, option: str) -> str:
    """Run a little of Spark with it; where its main class came from."""
    main = "org.apache.spark.launcher.Main"
    command = [found.home / "bin" / "java", option, "-Xlog:class+load", "-cp", str(JARS), main]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    return next(line for line in done.stdout.splitlines() if f" {main} source: " in line)


def test_the_second_run_takes_the_classes_of_the_first(found: java.Java) -> None:
    first = java.shared_classes(found, "job")
    assert first.startswith("-XX:ArchiveClassesAtExit=")
    assert "shared objects file" not in launched(found, first)
    second = java.shared_classes(found, "job")
    assert second.startswith("-XX:SharedArchiveFile=")
    assert "shared objects file (top)" in launched(found, second)
    assert java.shared_classes(found, "other").startswith("-XX:ArchiveClassesAtExit="), "a job has its own"


def test_what_was_not_written_whole_is_never_taken(found: java.Java) -> None:
    half = Path(java.shared_classes(found, "job").partition("=")[2])
    # A run that is killed while it writes: the head comes last.
    half.write_bytes(bytes(4) + b"the rest")
    assert java.shared_classes(found, "job").startswith("-XX:ArchiveClassesAtExit=")
    assert half.exists(), "it may still be written"
    os.utime(half, (1, 1))
    assert java.shared_classes(found, "job").startswith("-XX:ArchiveClassesAtExit=")
    assert not half.exists()


def test_another_build_of_java_takes_no_archive_of_this_one(found: java.Java, tmp_path: Path) -> None:
    Path(java.shared_classes(found, "job").partition("=")[2]).write_bytes(b"whole")
    assert java.shared_classes(found, "job").startswith("-XX:SharedArchiveFile=")
    other = tmp_path / "java"
    other.write_bytes(b"another build")
    newer = java.Java(found.home, other, found.version, found.origin)
    assert java.shared_classes(newer, "job").startswith("-XX:ArchiveClassesAtExit=")
