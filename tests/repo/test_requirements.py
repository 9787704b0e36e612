"""The locks: whole, hashed, without an address, and what pyproject.toml asks for."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ROOT / "requirements"
PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>\S+)(?: ; .+)?$")


def entries(lock: str) -> dict[str, tuple[str, set[str]]]:
    """Every pin of a lock: its version and its hashes."""
    pins: dict[str, tuple[str, set[str]]] = {}
    for block in re.split(r"\n(?=\S)", (LOCKS / lock).read_text().replace("\\\n", "\n")):
        lines = [line.strip() for line in block.splitlines() if line.strip() and not line.startswith("#")]
        if lines:
            match = PIN.match(lines[0])
            assert match, f"{lock}: not a pin: {lines[0]}"
            hashes = {line.removeprefix("--hash=sha256:") for line in lines[1:]}
            pins[canonicalize_name(match["name"])] = (match["version"], hashes)
    return pins


@pytest.mark.parametrize("lock", ["runtime.txt", "embedded.txt", "spark.txt", "dev.txt"])
def test_every_pin_has_hashes_and_nothing_else(lock: str) -> None:
    for name, (_, hashes) in entries(lock).items():
        assert hashes, name
        assert all(re.fullmatch(r"[0-9a-f]{64}", value) for value in hashes), name
    assert "://" not in (LOCKS / lock).read_text()


def test_what_is_tested_is_what_runs() -> None:
    runtime, embedded = entries("runtime.txt"), entries("embedded.txt")
    spark, dev = entries("spark.txt"), entries("dev.txt")
    assert {name: pin for name, pin in embedded.items() if name in runtime} == runtime
    assert {name: pin for name, pin in spark.items() if name in embedded} == embedded
    assert {name: pin for name, pin in dev.items() if name in spark} == spark


def test_the_locks_satisfy_what_is_asked_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    client = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text())
    pipeline = tomllib.loads((ROOT / "pipeline" / "pyproject.toml").read_text())["project"]
    extras = [wanted for extra in pipeline["optional-dependencies"].values() for wanted in extra]
    asked = {
        "runtime.txt": [*project["project"]["dependencies"], *client["project"]["dependencies"]],
        "embedded.txt": project["project"]["optional-dependencies"]["embedded"],
        "spark.txt": [*pipeline["dependencies"], *extras],
        "dev.txt": project["dependency-groups"]["dev"],
    }
    for lock, requirements in asked.items():
        pins = entries(lock)
        for requirement in map(Requirement, requirements):
            if requirement.name not in ("gapless", "gapless-spark"):  # folders of this repository
                version, _ = pins[canonicalize_name(requirement.name)]
                assert requirement.specifier.contains(version, prereleases=True), requirement


def test_the_locks_are_what_the_resolver_writes(tmp_path: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists() and not shutil.which("uv"):
        pytest.skip("needs uv")
    shutil.copytree(LOCKS, tmp_path, dirs_exist_ok=True)
    environment = {**os.environ, "GAPLESS_LOCK_DIR": str(tmp_path)}
    environment["PATH"] = f"{uv.parent}{os.pathsep}{environment['PATH']}"
    result = subprocess.run(
        [ROOT / ".ci" / "lock"], env=environment, capture_output=True, text=True, check=False
    )
    if "error sending request" in result.stderr or "Could not connect" in result.stderr:
        pytest.skip("no package index can be reached")
    assert result.returncode == 0, result.stderr
    for lock in LOCKS.glob("*.txt"):
        assert (tmp_path / lock.name).read_text() == lock.read_text(), (
            f"run .ci/lock: {lock.name} is out of date"
        )


def test_the_resolver_is_told_of_pyspark_what_pyspark_says() -> None:
    (told,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["dependency-metadata"]
    said = distribution(told["name"])
    assert (told["version"], told["requires-python"]) == (said.version, said.metadata["Requires-Python"])
    of_connect = [one for one in map(Requirement, said.requires or ()) if _is_of_connect(one)]
    assert set(map(Requirement, told["requires-dist"])) == set(of_connect)


def _is_of_connect(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": "connect"})


def test_the_layers_hold() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([".", "client", "pipeline"])}
    result = subprocess.run(
        [linter, "--no-cache"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout
