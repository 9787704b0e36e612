"""Makes a Postgres data folder atomically, and writes the configuration before each start."""

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

# Settings for the service on an ordinary machine; `postgres.local.conf` in the home overrides them.
_SETTINGS = {
    "max_connections": "200",
    # A statement over the whole log locks each segment and its indexes, and each day adds a segment.
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
    """The major version of Postgres that made the folder; None if there is no folder yet."""
    version = folders.read_plain(data / "PG_VERSION")
    if version is None:
        return None
    if not version.strip().isdigit():
        raise EmbeddedError(f"{data}/PG_VERSION names no version; move the folder aside")
    return int(version)


def create(data: Path, binaries: PostgresBinaries, identity: Identity) -> None:
    """Make the data folder with the roles and the database. It gets its name once it is complete."""
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
    """Make an empty folder beside the data, for `finish` to rename. Folders that earlier attempts left are
    removed first, for up to 5 s: programs of an attempt that was just killed may still write there."""
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
    """Decides that a complete folder replaces the data. `take_up` then moves it there."""
    restored = _restored(data)
    shutil.rmtree(restored, ignore_errors=True)
    finish(partial, restored)


def take_up(data: Path) -> Path | None:
    """Moves the folder that `decide` chose to the data's place. Returns the folder with the previous data, if
    any. If the process is killed meanwhile, the next call finishes the move."""
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
    """Writes the configuration files. They trust every user that can enter the socket's folder; others cannot
    connect.

    The files are in the home and not with the data: root writes them, and the data may belong to another
    user, who could put a link in their place.
    """
    local = home / "postgres.local.conf"
    if not local.exists():
        folders.replace(
            local, "# Your own settings for the embedded Postgres. Those that durability needs stay on.\n"
        )
    settings = {**_SETTINGS, **_memory(), **_recovery()}
    lines = [f"# Written at each start. Your own settings belong in {local.name} beside this file."]
    lines += [f"{name} = {value}" for name, value in settings.items()]
    lines += [f"include_if_exists = {_quoted(str(local))}", ""]
    folders.replace(home / CONFIGURATION, "\n".join(lines))
    # The second rule is for base backups: `all` databases does not include replication.
    folders.replace(home / ACCESS, "local all all trust\nlocal replication postgres trust\n")


def promises(home: Path, sockets: Path, cluster_name: str) -> list[str]:
    """The options that no configuration file may change: those for durability and for access to the
    server."""
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
    """Settings for memory. Shared buffers get an eighth of it, 64 to 256 MB: a container may have less memory
    than it sees."""
    total_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1024**2
    shared_mb = max(64, min(256, total_mb // 8))
    return {"shared_buffers": f"'{shared_mb}MB'", "effective_cache_size": f"'{max(128, total_mb // 2)}MB'"}


def _recovery() -> dict[str, str]:
    """The setting that syncs the folder after a crash in one call: file by file takes most of a second even
    on a small log.

    Kernels before 5.8 do not report a failed write to that call, so there Postgres syncs file by file.
    """
    system = os.uname()
    numbers = re.findall(r"\d+", system.release)[:2]
    trusted = system.sysname == "Linux" and [int(number) for number in numbers] >= [5, 8]
    return {"recovery_init_sync_method": "syncfs" if trusted else "fsync"}


def run(program: list[str], identity: Identity, text: bytes = b"") -> str:
    """Runs a program of Postgres as the identity; returns its output. Raises `EmbeddedError` if it fails."""
    command = identity.command(program, death_signal=signal.SIGKILL)
    environment = {**os.environ, "LC_ALL": "C"}  # `fill` looks for words in its output
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
