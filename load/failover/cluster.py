"""A primary and its possible replacements: a streaming standby, a base backup, a dump."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

from load.postgres import Postgres, programs, run

UNFENCED = """
create or replace function gapless_internal.is_same_history() returns boolean language sql as 'select true';
create or replace function gapless.fence(p_disowned uuid default null, p_known integer default null)
returns void language sql as 'select';
"""
"""The control: SQL that turns off the detection of a changed primary."""


class Cluster:
    """A migrated primary on temporary data."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="gapless-failover-"))
        self.primary = Postgres(self.home / "primary")
        self.standby = Postgres(self.home / "standby")

    async def start(self, *, fenced: bool) -> None:
        self.primary.make()
        self.primary.start()
        await self.primary.make_log()
        if not fenced:
            await self.primary.execute(f"select gapless.fence(); {UNFENCED}")

    def back_up(self, to: Path, *more: str) -> None:
        """Take a base backup of the running primary."""
        words = [*self.primary.reached, "-D", to, "-X", "stream", "-c", "fast"]
        run([programs() / "pg_basebackup", *words, *more])

    def follow(self) -> None:
        """Start a standby that streams from the primary."""
        self.back_up(self.standby.data, "-R")
        self.standby.start()

    async def cut(self) -> None:
        """Stop the replication to the standby."""
        await self.standby.execute("alter system set primary_conninfo = ''", "postgres")
        await self.standby.execute("select pg_reload_conf()", "postgres")
        await self.standby.execute(
            "do $$ begin while exists (select from pg_stat_wal_receiver) loop perform pg_sleep(0.01);"
            " end loop; end $$",
            "postgres",
        )

    async def promote(self) -> None:
        """Kill the primary, and promote the standby."""
        self.primary.stop()
        await self.standby.execute("select pg_promote(true, 60)", "postgres")

    def restore(self, backup: Path) -> None:
        """Replace the primary by a base backup, at the same address."""
        self.primary.stop()
        self.primary.data.rename(self.home / "gone")
        backup.rename(self.primary.data)
        self.primary.start()

    def dump(self, to: Path) -> None:
        run([programs() / "pg_dump", *self.primary.reached, "-Fc", "-f", to, self.primary.log])

    async def load_dump(self, dump: Path) -> None:
        """Drop the database while it is in use, and restore it from the dump."""
        await self.primary.execute(f"drop database {self.primary.log} with (force)", "postgres")
        await self.primary.execute(f"create database {self.primary.log}", "postgres")
        words = [*self.primary.reached, "-d", self.primary.log, "-1", dump]
        await asyncio.to_thread(run, [programs() / "pg_restore", *words])

    def remove(self) -> None:
        for server in (self.primary, self.standby):
            server.stop()
        shutil.rmtree(self.home, ignore_errors=True)
