"""A primary and what can take its place: a streaming standby, a base backup, a dump."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg

from load.children import free_port
from load.postgres import as_nobody, command, migrate, programs, run

DATABASE = "gapless"
ROLES = ("gapless_service", "gapless_publisher", "gapless_reader")
UNFENCED = """
create or replace function gapless.is_same_history() returns boolean language sql as 'select true';
create or replace function gapless.fence(p_disowned uuid default null, p_known integer default null)
returns void language sql as 'select';
"""
"""The control: a log that does not notice what happens to it."""


@dataclass(slots=True)
class Server:
    """One Postgres, by its data folder and its port on loopback."""

    data: Path
    port: int = field(default_factory=free_port)

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{DATABASE}"

    def start(self) -> None:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self.data.parent,
        }
        words = " ".join(f"-c {name}={value}" for name, value in settings.items())
        run([programs() / "pg_ctl", "-D", self.data, "-l", f"{self.data}.log", "-w", "-o", words, "start"])

    def stop(self) -> None:
        """At once, as a machine that fails."""
        words = [programs() / "pg_ctl", "-D", self.data, "-m", "immediate", "stop"]
        subprocess.run(command(words), capture_output=True, cwd="/")

    async def execute(self, statement: str, database: str = DATABASE) -> None:
        """As the superuser."""
        session = await asyncpg.connect(host="127.0.0.1", port=self.port, user="postgres", database=database)
        await session.execute(statement)
        await session.close()


class Cluster:
    """A migrated primary on throw-away data."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="gapless-failover-"))
        as_nobody(self.home)
        self.primary = Server(self.home / "primary")
        self.standby = Server(self.home / "standby")

    async def start(self, *, fenced: bool) -> None:
        words = ["-D", self.primary.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8"]
        run([programs() / "initdb", *words])
        self.primary.start()
        for role in ROLES:
            await self.primary.execute(f"create role {role} nologin", "postgres")
        await self.primary.execute(f"create database {DATABASE}", "postgres")
        await asyncio.to_thread(migrate, self.primary.url)
        if not fenced:
            await self.primary.execute(f"select gapless.fence(); {UNFENCED}")

    def back_up(self, to: Path, *more: str) -> None:
        """A base backup of the primary as it is."""
        words = [
            "-h",
            "127.0.0.1",
            "-p",
            self.primary.port,
            "-U",
            "postgres",
            "-D",
            to,
            "-X",
            "stream",
            "-c",
            "fast",
        ]
        run([programs() / "pg_basebackup", *words, *more])

    def follow(self) -> None:
        """Start a standby that streams from the primary."""
        self.back_up(self.standby.data, "-R")
        self.standby.start()

    async def cut(self) -> None:
        """The standby receives nothing more."""
        await self.standby.execute("alter system set primary_conninfo = ''", "postgres")
        await self.standby.execute("select pg_reload_conf()", "postgres")
        await self.standby.execute(
            "do $$ begin while exists (select from pg_stat_wal_receiver) loop perform pg_sleep(0.01);"
            " end loop; end $$",
            "postgres",
        )

    async def promote(self) -> None:
        """The primary dies, and the standby takes its place."""
        self.primary.stop()
        await self.standby.execute("select pg_promote(true, 60)", "postgres")

    def restore(self, backup: Path) -> None:
        """The primary goes on, at its own address, from a base backup."""
        self.primary.stop()
        self.primary.data.rename(self.home / "gone")
        backup.rename(self.primary.data)
        self.primary.start()

    def dump(self, to: Path) -> None:
        words = ["-h", "127.0.0.1", "-p", self.primary.port, "-U", "postgres", "-Fc", "-f", to, DATABASE]
        run([programs() / "pg_dump", *words])

    async def load_dump(self, dump: Path) -> None:
        """The database is dropped under everybody, and comes back from the dump."""
        await self.primary.execute(f"drop database {DATABASE} with (force)", "postgres")
        await self.primary.execute(f"create database {DATABASE}", "postgres")
        words = ["-h", "127.0.0.1", "-p", self.primary.port, "-U", "postgres", "-d", DATABASE, "-1", dump]
        await asyncio.to_thread(run, [programs() / "pg_restore", *words])

    def remove(self) -> None:
        for server in (self.primary, self.standby):
            server.stop()
        shutil.rmtree(self.home, ignore_errors=True)
