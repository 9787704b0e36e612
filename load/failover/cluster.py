"""A primary and its possible replacements: streaming standbys, base backups, copied files, a dump."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from pathlib import Path

from load.postgres import Postgres, programs, run

UNFENCED = """
create or replace function gapless_internal.is_same_history() returns boolean language sql as 'select true';
create or replace function gapless.fence(p_disowned uuid default null, p_known integer default null)
returns void language sql as 'select';
"""
"""The control: SQL that turns off the detection of a changed primary."""

ALIKE = """
create or replace function gapless_internal.unlike(p_given bigint, p_width bigint) returns bigint
language sql volatile as $$
    select (greatest(p_given, (extract(epoch from clock_timestamp()) * 1000000)::bigint) / 68719476736 + 1)
           * 68719476736 - 1
$$;
"""
"""The control for histories that do not know of each other: ids go on by the clock alone, on a grid. Its
steps are of 2^36 µs, 19 hours, so two that begin within a minute are in the same one."""
CLOCK_AHEAD = "load.clock_ahead"
OWN_CLOCKS = f"""
do $do$
declare
    f record;
begin
    for f in select p.oid from pg_proc p join pg_namespace n on n.oid = p.pronamespace
             where n.nspname like 'gapless%' and p.proname in ('unlike', 'jump', 'lost_at') loop
        execute replace(pg_get_functiondef(f.oid), 'clock_timestamp()', $$(clock_timestamp()
            + coalesce(nullif(current_setting('{CLOCK_AHEAD}', true), ''), '0')::interval)$$);
    end loop;
end $do$
"""
"""Each server of a cluster has the clock that its setting says."""
PATIENT = "do $$ begin while %s loop perform pg_sleep(0.01); end loop; end $$"


class Cluster:
    """A migrated primary on temporary data. `sibling` is a second replacement, which knows nothing of
    `standby`."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="gapless-failover-"))
        self.primary = Postgres(self.home / "primary")
        self.standby = Postgres(self.home / "standby")
        self.sibling = Postgres(self.home / "sibling")

    @property
    def servers(self) -> tuple[Postgres, ...]:
        """All of them, running or not."""
        return self.primary, self.standby, self.sibling

    async def start(self, *, fenced: bool, alike: bool = False) -> None:
        self.primary.make()
        self.primary.start()
        await self.primary.make_log()
        if not fenced:
            await self.primary.execute(f"select gapless.fence(); {UNFENCED}")
        if alike:
            await self.primary.execute(ALIKE)
        await self.primary.execute(OWN_CLOCKS)

    def back_up(self, to: Path, *more: str) -> None:
        """Take a base backup of the running primary."""
        words = [*self.primary.reached, "-D", to, "-X", "stream", "-c", "fast"]
        run([programs() / "pg_basebackup", *words, *more])

    def follow(self, standby: Postgres | None = None, clock_ahead_s: float = 0) -> None:
        """Start a standby that streams from the primary."""
        standby = standby or self.standby
        self.back_up(standby.data, "-R")
        standby.start(**{CLOCK_AHEAD: f"{clock_ahead_s:g}s"})

    async def cut(self, standby: Postgres | None = None) -> None:
        """Stop the replication to the standby."""
        standby = standby or self.standby
        await standby.execute("alter system set primary_conninfo = ''", "postgres")
        await standby.execute("select pg_reload_conf()", "postgres")
        await standby.execute(PATIENT % "exists (select from pg_stat_wal_receiver)", "postgres")

    async def promote(self) -> None:
        """Kill the primary, and promote the standby."""
        self.primary.stop()
        await self.lead(self.standby)

    async def lead(self, standby: Postgres) -> None:
        """Promote this standby."""
        await standby.execute("select pg_promote(true, 60)", "postgres")

    async def crash(self) -> None:
        """Kill one of the primary's processes, so that it goes through recovery."""
        session = await self.primary.connect("postgres")
        pid = await session.fetchval("select pid from pg_stat_activity where backend_type = 'walwriter'")
        os.kill(pid, signal.SIGKILL)
        session.terminate()

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
        for server in self.servers:
            server.stop()
        shutil.rmtree(self.home, ignore_errors=True)
