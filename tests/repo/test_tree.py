"""Rules of the repository that no linter knows."""

import ast
import re
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Written in two pieces, so that this file does not hold what it looks for.
REGISTRIES = ["pypi." + "org", "python" + "hosted.org", "registry.npm" + "js.org"]
MACHINE_PATHS = [r"/ro" + "ot/", r"/wo" + "rk/(main|shared)", r"/ho" + "me/[a-z]+/", r"/Us" + "ers/[A-Za-z]"]
SECRETS = [r"AK" + r"IA[0-9A-Z]{16}", r"gh[pousr]_" + r"[A-Za-z0-9]{36}", r"xox[bap]-" + r"[0-9]{6,}"]
NOT_KEPT = {".git", ".venv", ".venvs", ".gapless", "node_modules", "__pycache__", "dist"}


def tracked() -> list[Path]:
    """The files of the repository: those git knows, or those of a copy without git."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode == 0:
        return [path for name in listing.stdout.split("\0") if name and (path := ROOT / name).is_file()]
    kept = (path for path in ROOT.rglob("*") if not NOT_KEPT & set(path.relative_to(ROOT).parts))
    return [path for path in kept if path.is_file()]


def texts() -> Iterator[tuple[Path, str]]:
    for path in tracked():
        data = path.read_bytes()
        if b"\0" not in data[:8192]:
            yield path.relative_to(ROOT), data.decode(errors="replace")


def found(patterns: list[str]) -> list[str]:
    wanted = re.compile("|".join(patterns))
    return [f"{path}: {hit.group()}" for path, text in texts() if (hit := wanted.search(text))]


def test_no_file_names_a_registry() -> None:
    assert found([re.escape(host) for host in REGISTRIES]) == []


def test_no_file_holds_a_path_of_one_machine() -> None:
    assert found(MACHINE_PATHS) == []


def test_no_file_holds_a_token() -> None:
    assert found(SECRETS) == []


def test_locks_that_record_addresses_are_not_kept() -> None:
    kept = {path.name for path in tracked()}
    assert not kept & {"uv.lock", "pylock.toml", "poetry.lock", "yarn.lock", "pnpm-lock.yaml"}
    for path in tracked():
        if path.name == "package-lock.json":
            assert '"resolved"' not in path.read_text(), path


def test_images_of_others_are_named_by_digest() -> None:
    text = "\n".join((ROOT / name).read_text() for name in ("Dockerfile", "compose.yaml"))
    named = re.findall(r"(?m)^(?:ARG BASE=| *image: )(\S+)$", text)
    assert len(named) == 4, "the base, our own image, Postgres and Valkey"
    assert [name for name in named if not re.search(r"@sha256:[0-9a-f]{64}$", name)] == ["gapless"]


def test_the_readme_is_short() -> None:
    readme = ROOT / "README.md"
    assert not readme.exists() or len(readme.read_text().splitlines()) <= 150


def test_tests_and_load_leave_connections_to_their_owner() -> None:
    """`load.relay` alone uses asyncio's streams: what their own functions open has no owner."""
    forbidden = re.compile(r"\b(start_server|start_unix_server|open_connection|open_unix_connection)\(")
    own = {Path("load/relay.py"), Path("tests/repo/test_tree.py")}
    wrong = [
        f"{path}:{number}"
        for path, text in sources().items()
        if path.parts[0] in ("tests", "load") and path not in own
        for number, line in enumerate(text.splitlines(), 1)
        if forbidden.search(line)
    ]
    assert wrong == []


def test_tests_wait_for_a_line_of_a_child_only_for_a_time() -> None:
    bare = re.compile(r"^(?!.*in_time\().*\.std(out|err)\.readline\(", re.MULTILINE)
    found = [path for path in sorted((ROOT / "tests").rglob("*.py")) if bare.search(path.read_text())]
    assert found == [], "use tests/patience.py: next_line"


def test_load_waits_by_one_patience() -> None:
    """What loads wait for is waited for in multiples of `load.waiting.PATIENCE_S`."""
    own = re.compile(r"(?i)\bpatience(_s)?(: float)?( = |=|\", .*default=)[0-9.]+(?! \*)\b(?!\.)")
    wrong = [
        f"{path}:{number}"
        for path, text in sources().items()
        if path.parts[0] == "load" and path != Path("load/waiting.py")
        for number, line in enumerate(text.splitlines(), 1)
        if own.search(line)
    ]
    assert wrong == []


def test_few_tests_need_the_clock() -> None:
    marked = sum(text.count("mark.realtime(") for path, text in sources().items() if path.parts[0] == "tests")
    assert marked <= 25


def sources() -> dict[Path, str]:
    return {path: text for path, text in texts() if path.suffix == ".py" or path.name == "gapless"}


def test_source_files_are_small() -> None:
    lengths = {path: len(text.splitlines()) for path, text in sources().items()}
    assert {path: count for path, count in lengths.items() if count > 500} == {}
    assert statistics.median(lengths.values()) <= 150


def test_functions_are_small() -> None:
    lengths = {}
    for path, text in sources().items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lengths[f"{path}:{node.lineno} {node.name}"] = (
                    (node.end_lineno or node.lineno) - node.lineno + 1
                )
    assert {name: count for name, count in lengths.items() if count > 70} == {}
    small = sum(count <= 30 for count in lengths.values())
    assert small / len(lengths) >= 0.9


SAYS_NOTHING = {"core", "helpers", "hot", "log", "managed", "run", "shared", "start", "utils"}


def test_names_of_modules_say_what_they_hold() -> None:
    parts = {"app", "cache", "client", "db", "load", "subscriptions"}
    assert [path for path in sources() if path.parts[0] in parts and path.stem in SAYS_NOTHING] == []
