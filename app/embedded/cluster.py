"""Makes a Postgres data folder, complete or not at all, and configures it before each start."""

import functools
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from app.embedded import folders, processes
from app.embedded.binaries import PostgresBinaries
from app.embedded.errors import EmbeddedError
from app.embedded.identity import Identity

OWNER = "gapless_owner"
SERVICE = "gapless_service"
DATABASE = "gapless"
CONFIGURATION = "postgresql.conf"
ACCESS = "pg_hba.conf"

_REMOVAL_S = 5.0

ROLES = ("postgres", OWNER, SERVICE, "gapless_publisher", "gapless_reader")
"""The roles of a new cluster."""

_BOOTSTRAP = f"""
create role {OWNER} login
create role {SERVICE} login
create role gapless_publisher nologin
create role gapless_reader nologin
create database {DATABASE} owner {OWNER}
revoke all on database {DATABASE} from public
grant connect on database {DATABASE} to {SERVICE}
"""

# Settings that the service needs and the machine can afford; `postgres.local.conf` in the home overrides.
_SETTINGS = {
    "max_connections": "200",
    # A statement over the whole log locks each segment and its indexes, and there is one for each day.
    "max_locks_per_transaction": "512",
    "max_wal_size": "'2GB'",
    "checkpoint_timeout": "'5min'",
    "autovacuum_naptime": "'15s'",
    "jit": "off",
    "timezone": "'UTC'",
    "log_timezone": "'UTC'",
    "log_checkpoints": "off",
    "log_line_prefix": "'%m [%p] %q%u@%d '",
}


def major_of(data: Path) -> int | None:
    """The version of Postgres that made the folder; None if there is no folder yet."""
    told = folders.read_plain(data / "PG_VERSION")
    if told is None:
        return None
    if not told.strip().isdigit():
        raise EmbeddedError(f"{data}/PG_VERSION names no version; move the folder aside")
    return int(told)


def create(data: Path, binaries: PostgresBinaries, identity: Identity) -> None:
    """Make the folder with the roles and the database in it. It gets its name once it is complete."""
    partial = make_partial(data, identity)
    fill(partial, binaries, identity)
    finish(partial, data)


def fill(partial: Path, binaries: PostgresBinaries, identity: Identity) -> None:
    """Make a new cluster with the roles and the database in an empty folder."""
    initdb = [str(binaries.program("initdb")), "-D", str(partial), "-U", "postgres", "-A", "trust"]
    run([*initdb, "--no-locale", "--encoding=UTF8", "--data-checksums", "--no-instructions"], identity)
    # Single-user mode has no socket and no second writer, and ends with a checkpoint on disk.
    single = [str(binaries.program("postgres")), "--single", "-D", str(partial), "postgres"]
    answer = run(single, identity, _BOOTSTRAP.encode())
    if "ERROR:" in answer or "FATAL:" in answer:
        raise EmbeddedError(f"making the database failed:\n{answer}")


def make_partial(data: Path, identity: Identity) -> Path:
    """An empty folder beside the data, which gets its name once it is complete. Folders that earlier attempts
    left are removed; programs of an attempt that was just killed may still write there for a moment."""
    for half_made in data.parent.glob(f"{data.name}.partial-*"):
        processes.wait_until(functools.partial(_removed, half_made), _REMOVAL_S)
    partial = Path(tempfile.mkdtemp(prefix=f"{data.name}.partial-", dir=data.parent))
    identity.own(partial)
    return partial


def finish(partial: Path, data: Path) -> None:
    """Gives a complete folder its name, durably."""
    partial.rename(data)
    folders.sync(data.parent)


def decide(partial: Path, data: Path) -> None:
    """Decides that a complete folder replaces the data: `take_up` moves it there."""
    restored = _restored(data)
    shutil.rmtree(restored, ignore_errors=True)
    finish(partial, restored)


def take_up(data: Path) -> Path | None:
    """Moves a decided folder to its place. Returns the folder of the data that was there before, if any. If
    the process is killed meanwhile, the next call goes on from there."""
    restored, aside = _restored(data), None
    if not restored.exists():
        return None
    if data.exists():
        moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        aside = data.with_name(f"{data.name}.before-{moment}-{os.urandom(2).hex()}")
        data.rename(aside)
    finish(restored, data)
    return aside


def _restored(data: Path) -> Path:
    return data.with_name(f"{data.name}.restored")


def _removed(folder: Path) -> bool:
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def configure(home: Path) -> None:
    """Writes the configuration files. Users that can enter the socket's folder are trusted, others cannot
    connect.

    The files lie in the home, not with the data: root writes them, and the data may belong to another user,
    who could put a link in their place.
    """
    local = home / "postgres.local.conf"
    if not local.exists():
        folders.replace(
            local, "# Settings of your own for the embedded Postgres. What durability rests on stays on.\n"
        )
    settings = {**_SETTINGS, **_memory(), **_recovery()}
    lines = [f"# Written at each start. Settings of your own go into {local.name} beside this file."]
    lines += [f"{name} = {value}" for name, value in settings.items()]
    lines += [f"include_if_exists = {_quoted(str(local))}", ""]
    folders.replace(home / CONFIGURATION, "\n".join(lines))
    # The second line is for base backups: a rule for all databases leaves replication out.
    folders.replace(home / ACCESS, "local all all trust\nlocal replication postgres trust\n")


def promises(home: Path, sockets: Path, cluster_name: str) -> list[str]:
    """The settings that no file may change: those for durability, and for access to the server."""
    folder = '"' + str(sockets).replace('"', '""') + '"'
    settings = {
        "config_file": str(home / CONFIGURATION),
        "hba_file": str(home / ACCESS),
        "fsync": "on",
        "full_page_writes": "on",
        "synchronous_commit": "on",
        "listen_addresses": "",
        "unix_socket_directories": folder,
        "unix_socket_permissions": "0700",
        "port": "5432",
        "cluster_name": cluster_name,
        "logging_collector": "off",
    }
    return [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]


def _memory() -> dict[str, str]:
    """Shared buffers of an eighth of the memory, at most 256 MB: a container may have less than it sees."""
    total_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1024**2
    shared_mb = max(64, min(256, total_mb // 8))
    return {"shared_buffers": f"'{shared_mb}MB'", "effective_cache_size": f"'{max(128, total_mb // 2)}MB'"}


def _recovery() -> dict[str, str]:
    """Settings to sync the folder after a crash in one call: file by file takes most of a second on a small
    log.

    Kernels before 5.8 do not report a failed write to that call, so there Postgres syncs file by file.
    """
    system = os.uname()
    numbers = re.findall(r"\d+", system.release)[:2]
    trusted = system.sysname == "Linux" and [int(number) for number in numbers] >= [5, 8]
    return {"recovery_init_sync_method": "syncfs" if trusted else "fsync"}


def run(program: list[str], identity: Identity, text: bytes = b"") -> str:
    """Runs a program of Postgres as the identity; returns its output. Raises `EmbeddedError` if it fails."""
    command = identity.command(program, death_signal=signal.SIGKILL)
    environment = {**os.environ, "LC_ALL": "C"}  # its messages are read above
    result = subprocess.run(
        command,
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd="/",
        env=environment,
        check=False,
    )
    answer = result.stdout.decode(errors="replace")
    if result.returncode != 0:
        raise EmbeddedError(f"{Path(program[0]).name} ended with {result.returncode}:\n{answer.strip()}")
    return answer


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
