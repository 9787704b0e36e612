"""A Postgres data folder: made whole or not at all, and configured anew before each start."""

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

from app.embedded.binaries import PostgresBinaries
from app.embedded.errors import EmbeddedError
from app.embedded.identity import Identity

OWNER = "gapless_owner"
SERVICE = "gapless_service"
DATABASE = "gapless"

_BOOTSTRAP = f"""
create role {OWNER} login
create role {SERVICE} login
create role gapless_publisher nologin
create role gapless_reader nologin
create database {DATABASE} owner {OWNER}
revoke all on database {DATABASE} from public
grant connect on database {DATABASE} to {SERVICE}
"""

# What the service needs and the machine can bear; `postgres.local.conf` in the home may say otherwise.
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
    """The version of Postgres that made the folder, None where there is none yet."""
    try:
        return int((data / "PG_VERSION").read_text())
    except FileNotFoundError:
        return None


def create(data: Path, binaries: PostgresBinaries, identity: Identity) -> None:
    """Make the folder with the roles and the database in it. It gets its name once it is complete."""
    for half_made in data.parent.glob(f"{data.name}.partial-*"):
        shutil.rmtree(half_made)
    partial = data.with_name(f"{data.name}.partial-{os.getpid()}")
    partial.mkdir(mode=0o700)
    identity.own(partial)
    initdb = [str(binaries.program("initdb")), "-D", str(partial), "-U", "postgres", "-A", "trust"]
    _run([*initdb, "--no-locale", "--encoding=UTF8", "--data-checksums", "--no-instructions"], identity)
    # Single-user mode has no socket and no second writer, and ends with a checkpoint on disk.
    single = [str(binaries.program("postgres")), "--single", "-D", str(partial), "postgres"]
    answer = _run(single, identity, _BOOTSTRAP.encode())
    if "ERROR:" in answer or "FATAL:" in answer:
        raise EmbeddedError(f"making the database failed:\n{answer}")
    partial.rename(data)
    _sync(data.parent)


def configure(data: Path, identity: Identity) -> None:
    """Write the configuration files: who can enter the socket's folder is trusted, nobody else gets in."""
    local = data.with_name("postgres.local.conf")
    if not local.exists():
        local.write_text(
            "# Settings of your own for the embedded Postgres. What durability rests on stays on.\n"
        )
    settings = {**_SETTINGS, **_memory(), **_recovery()}
    lines = [f"# Written at each start. Settings of your own go into {local.name} beside this folder."]
    lines += [f"{name} = {value}" for name, value in settings.items()]
    _write(data / "postgresql.conf", "\n".join([*lines, f"include_if_exists = {_quoted(str(local))}", ""]))
    _write(data / "pg_hba.conf", "local all all trust\n")
    for name in ("postgresql.conf", "pg_hba.conf"):
        identity.own_file(data / name)


def promises(sockets: Path, cluster_name: str) -> list[str]:
    """The settings no file may change: what durability rests on, and who can reach the server."""
    folder = '"' + str(sockets).replace('"', '""') + '"'
    settings = {
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
    """After a crash, put the folder on disk in one call: file by file takes most of a second on a small log.

    Kernels before 5.8 do not report a failed write to that call, so there it stays file by file.
    """
    system = os.uname()
    numbers = re.findall(r"\d+", system.release)[:2]
    trusted = system.sysname == "Linux" and [int(number) for number in numbers] >= [5, 8]
    return {"recovery_init_sync_method": "syncfs" if trusted else "fsync"}


def _run(program: list[str], identity: Identity, text: bytes = b"") -> str:
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


def _write(path: Path, text: str) -> None:
    """Replace a file at once: a crash leaves the old one or the new one."""
    fresh = path.with_suffix(".new")
    with fresh.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
