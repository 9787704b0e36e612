"""Backs up and restores the embedded Postgres with its own tools.

A backup is a folder: a base backup (it holds `PG_VERSION`), or a dump with the roles beside it. The folder
gets its name once it is complete. A base backup is as large as the data and quick to restore, but only by the
same major version. A dump is smaller, and any later version can load it.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.embedded import cluster, folders
from app.embedded.binaries import PostgresBinaries, find_postgres
from app.embedded.errors import EmbeddedError, HomeTakenError, in_words
from app.embedded.home import HomeLock
from app.embedded.identity import Identity, choose
from app.embedded.postgres import WRITABLE, EmbeddedPostgres

DUMP = "database.dump"
ROLES = "roles.sql"
_LIFE = "gapless.lives"
"""This table is empty after a crash. It must be empty after a restore too, so that every process sees the
restore."""
_NO_ARCHIVE = ("-c", "restore_command=false", "-c", "hot_standby=off")


@contextmanager
def at_hand(home: Path, *, make: bool = False) -> Iterator[EmbeddedPostgres]:
    """The embedded Postgres of a home with data: the running one, else one that is started for the block.
    With `make` a home without data gets some."""
    server = EmbeddedPostgres(home)
    if not make and cluster.major_of(server.data) is None:
        raise EmbeddedError(f"{server.home} holds no data of an embedded Postgres yet")
    lock = HomeLock(server.home)
    try:
        lock.take()
    except HomeTakenError:
        if not server.answers():
            raise EmbeddedError(
                f"a Gapless serves {server.home}, but its Postgres does not answer; try again"
            ) from None
        yield server
        return
    try:
        server.start()
        yield server
    finally:
        server.stop()
        lock.release()


def back_up(server: EmbeddedPostgres, target: Path, *, dump: bool) -> None:
    """Makes the folder `target` from a running server. After an `EmbeddedError` nothing is left behind."""
    target = target.absolute()
    if target.exists():
        raise EmbeddedError(f"{target} exists already; choose a new name")
    if not target.parent.is_dir():
        raise EmbeddedError(f"{target.parent} is no folder yet: make it first (mkdir -p {target.parent})")
    tools = find_postgres(cluster.major_of(server.data))
    with in_words(target.parent):
        partial = Path(tempfile.mkdtemp(prefix=f"{target.name}.partial-", dir=target.parent))
        try:
            if dump:
                _dump(server, tools, partial)
            else:
                _copy(server, tools, partial)
            folders.sync(partial)
            cluster.finish(partial, target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


def restore(server: EmbeddedPostgres, source: Path, *, replace: bool) -> Path | None:
    """Restores the data of a home from a backup. Returns the folder of the previous data, if any.

    This process must hold the home (`HomeLock`). The server runs on the new data once to complete it, and is
    stopped. If the process is killed before that, nothing has changed; after that, the next start finishes
    the restore.
    """
    major = major_of_backup(source)
    if server.data.exists() and not replace:
        raise EmbeddedError(f"{server.home} holds data already; say --replace to put it aside")
    with in_words(server.home):
        server.end_leftovers()
        tools = find_postgres(major)
        identity = choose(server.data, tools.program("initdb"))
        partial = cluster.make_partial(server.data, identity)
        try:
            if major is None:
                _load(server, tools, identity, source, partial)
            else:
                _recover(server, tools, identity, source, partial)
            server.stop()
        except BaseException:
            server.stop()
            shutil.rmtree(partial, ignore_errors=True)
            raise
        cluster.decide(partial, server.data)
        return cluster.take_up(server.data)


def major_of_backup(source: Path) -> int | None:
    """The version of Postgres that a base backup needs; None for a dump. Raises `EmbeddedError`."""
    if not source.exists():
        raise EmbeddedError(f"there is no {source}")
    major = cluster.major_of(source)
    if major is None and not (source / DUMP).is_file():
        raise EmbeddedError(f"{source} is not a backup made by gapless backup")
    return major


def _copy(server: EmbeddedPostgres, tools: PostgresBinaries, target: Path) -> None:
    _tool(tools, "pg_basebackup", "-d", server.admin_url, "-D", str(target), "-X", "stream", "-c", "fast")


def _dump(server: EmbeddedPostgres, tools: PostgresBinaries, target: Path) -> None:
    _tool(tools, "pg_dumpall", "-d", server.admin_url, "--roles-only", "-f", str(target / ROLES))
    options = ["--format=custom", f"--exclude-table-data={_LIFE}", "-f", str(target / DUMP)]
    _tool(tools, "pg_dump", "-d", server.admin_url, *options)


def _recover(
    server: EmbeddedPostgres, tools: PostgresBinaries, identity: Identity, source: Path, partial: Path
) -> None:
    """Recovers the data up to the end of the backup. This begins a new timeline, because later writes are
    another history than the original one after the backup."""
    if any((source / "pg_tblspc").iterdir()):
        raise EmbeddedError(f"{source} has tablespaces, which an embedded Postgres does not")
    _tool(tools, "pg_verifybackup", "--quiet", str(source))
    shutil.copytree(source, partial, symlinks=True, dirs_exist_ok=True)
    (partial / "recovery.signal").touch()
    partial.chmod(0o700)
    identity.own(partial)
    cluster.run([str(tools.program("initdb")), "--sync-only", "-D", str(partial)], identity)
    server.launch(partial, tools, identity, _NO_ARCHIVE, until=WRITABLE)


def _load(
    server: EmbeddedPostgres, tools: PostgresBinaries, identity: Identity, source: Path, partial: Path
) -> None:
    cluster.fill(partial, tools, identity)
    server.launch(partial, tools, identity)
    known = {f"CREATE ROLE {role};" for role in cluster.ROLES}
    lines = (source / ROLES).read_text().splitlines()
    roles = "\n".join(line for line in lines if line not in known)
    psql = ("psql", "-d", server.admin_url, "-X", "-q", "-v", "ON_ERROR_STOP=1")
    _tool(tools, *psql, text=roles)
    options = ["--create", "--clean", "--if-exists", "--exit-on-error"]
    _tool(tools, "pg_restore", "-d", server.url_of("postgres", "postgres"), *options, str(source / DUMP))
    _tool(tools, *psql, "-c", "analyze")


def _tool(tools: PostgresBinaries, name: str, *arguments: str, text: str = "") -> None:
    """Runs one of the server's own tools, without the `PG…` variables that would change what it does."""
    program = tools.program(name)
    if not program.exists():
        raise EmbeddedError(
            f"{tools.folder} has no {name}: install the client programs of Postgres {tools.major}"
        )
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    result = subprocess.run(
        [program, *arguments],
        input=text,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**clean, "LC_ALL": "C"},
        cwd="/",
        check=False,
    )
    if result.returncode != 0:
        raise EmbeddedError(f"{name} ended with {result.returncode}:\n{result.stderr.strip()}")
