"""docs/howto/production.md: its settings, its units, and the whole page from an empty server on."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
import trustme
from gapless import Client
from redis import Redis
from websockets.asyncio.client import connect

from load.children import free_port
from load.nginx import nginx
from load.wire import Target
from tests.conftest import Database
from tests.docs.pages import fences
from tests.docs.production import (
    OPERATIONS,
    PAGE,
    SECRET,
    SERVER,
    Machine,
    PostgresOnPort,
    file_text,
    settings_of,
    text_with,
    value_of,
)
from tests.docs.test_examples import until_ready
from tests.docs.test_monitoring import check, promtool
from tests.patience import PATIENCE_S, eventually, http_client
from tests.support import ROOT, RunningService

__all__ = ["promtool"]  # a fixture

UNITS = ("gapless.service", "gapless-backup.service", "gapless-backup.timer")
SERVICE = "/etc/systemd/system/gapless.service"


def test_the_units_are_sound(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze")
    script = tmp_path / "gapless-backup"
    script.write_text(file_text("/usr/local/bin/gapless-backup"))
    script.chmod(0o755)
    for name in UNITS:
        text = file_text(f"/etc/systemd/system/{name}")
        text = text.replace("/opt/gapless/", f"{ROOT}/").replace("/usr/local/bin", str(tmp_path))
        (tmp_path / name).write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / name) for name in UNITS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


async def test_the_command_of_the_unit_serves_with_its_settings(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    unit = file_text(SERVICE)
    program, *arguments = shlex.split(value_of(unit, "ExecStart"))
    assert arguments == ["serve"]
    settings = settings_of(file_text(value_of(unit, "EnvironmentFile")))
    here = {
        "GAPLESS_DATABASE_URL": database.service_url,
        "GAPLESS_MIGRATE_URL": database.owner_url,
        "GAPLESS_REDIS_URL": redis_url,
        "GAPLESS_HOME": str(tmp_path),
    }
    assert set(settings) - set(here) == {"GAPLESS_WORKERS", "GAPLESS_ALLOWED_HOSTS"}
    command = (program.replace("/opt/gapless", str(ROOT)),)
    service = RunningService({**settings, **here}, command=command, folder=tmp_path)
    try:
        async with http_client(service.url) as client:
            by_name = [
                (await client.get("/readyz", headers={"Host": host})) for host in (SERVER, "elsewhere")
            ]
            assert [answer.status_code for answer in by_name] == [200, 421]
            metrics = (await client.get("/metrics")).text
            assert 'worker="1"' in metrics
            assert 'worker="2"' not in metrics
    finally:
        assert service.stop() == 0, service.log


def test_prometheus_takes_the_configuration(promtool: str, tmp_path: Path) -> None:
    (tmp_path / "prometheus.yml").write_text(file_text("/etc/prometheus/prometheus.yml"))
    shutil.copy(ROOT / "docs" / "monitoring" / "alerts.yml", tmp_path)
    told = check(promtool, "check", "config", tmp_path / "prometheus.yml")
    assert "SUCCESS: 17 rules found" in told


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A machine with a Postgres and a Redis that know nothing of us yet."""
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    postgres = PostgresOnPort(tmp_path / "postgres")
    postgres.port = free_port()
    made = Machine(root, postgres, free_port(), free_port())
    postgres.start()
    yield made
    postgres.stop()


async def as_admin(machine: Machine, text: str) -> None:
    """Run SQL of a page as Postgres' superuser."""
    url = f"postgresql://postgres@/postgres?host={machine.postgres.sockets}&port={machine.postgres.port}"
    admin = await asyncpg.connect(url)
    try:
        for statement in filter(str.strip, text.split(";\n")):
            await admin.execute(statement)
    finally:
        await admin.close()


async def set_up_servers(machine: Machine) -> None:
    """Steps 1 and 2."""
    roles = "drop role gapless_owner, gapless_service, gapless_publisher, gapless_reader;\n"
    await as_admin(machine, "drop database gapless;\n" + roles + text_with("alter system set"))
    machine.postgres.stop()
    machine.postgres.start()
    documented = text_with("create role gapless_owner", OPERATIONS).replace("'…'", f"'{SECRET}'")
    kept = [line for line in documented.splitlines(keepends=True) if " to shop;" not in line]
    await as_admin(machine, "".join(kept))
    acl = text_with("ACL SETUSER", OPERATIONS).replace("PASSWORD", SECRET)
    with machine.redis(), Redis(port=machine.redis_port, password=SECRET) as admin:
        admin.execute_command(*acl.split())
        admin.config_rewrite()


def install(machine: Machine) -> None:
    """Step 3."""
    machine.unpack("0.1.0")
    script = text_with("useradd")
    if os.geteuid() == 0:
        machine.run(script)
        assert "gapless:" in (machine.root / "etc" / "passwd").read_text()
    else:
        machine.run("\n".join(line for line in script.splitlines() if not line.startswith("useradd")))
    for name in ("/etc/gapless.env", "/usr/local/bin/gapless"):
        machine.write(name)
    for name in ("backup", "try-restore"):
        machine.write(f"/usr/local/bin/gapless-{name}")
    [check_up] = [fence.text for fence in fences(PAGE) if fence.text.startswith("gapless migrate\n")]
    assert "gapless_service (login gapless_app)" in machine.run(check_up)


def publish(machine: Machine, *texts: str) -> int:
    """Publish to the lobby. Returns the last id."""
    with Client(machine.url) as client:
        return [client.publish("chat.lobby", {"text": text}).id for text in texts][-1]


def stored(machine: Machine) -> list[str]:
    with Client(machine.url) as client:
        return [message.data["text"] for message in client.iter_history("chat.lobby")]


async def is_ready(machine: Machine) -> bool:
    async with http_client(machine.url) as client:
        try:
            return (await client.get("/readyz")).text == '{"status":"ready","redis":true}'
        except httpx.TransportError:
            return False


async def through_nginx(machine: Machine, folder: Path) -> None:
    """Step 5: who may come in gets everything by TLS, and the others nothing."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    certificate = folder / "events.pem"
    authority.issue_cert(SERVER).private_key_and_cert_chain_pem.write_to_path(certificate)
    rules, service = text_with("deny  all;"), Target("127.0.0.1", machine.port)
    trusting = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    page = text_with(f"curl https://{SERVER}/readyz")

    def commands(port: int) -> list[str]:
        flags = f"-sS --cacert {folder}/ca.pem --resolve {SERVER}:{port}:127.0.0.1"
        own = page.replace(f"//{SERVER}/", f"//{SERVER}:{port}/")
        return [f"command {line.replace('curl', f'curl {flags}', 1)}" for line in own.splitlines()]

    with nginx(service, certificate, rules) as stranger:
        ready, _ = commands(stranger.port)
        assert "403 Forbidden" in machine.run(ready)
    with nginx(service, certificate, rules.replace("10.0.0.0/8", "127.0.0.1/32")) as front:
        ready, follow = commands(front.port)
        assert machine.run(ready) == '{"status":"ready","redis":true}'
        assert "403 Forbidden" in machine.run(ready.replace("/readyz", "/metrics"))
        pipe = subprocess.PIPE
        with subprocess.Popen(
            ["bash", "-c", f"exec {follow.removeprefix('command ')}"], stdout=pipe, text=True
        ) as stream:
            assert '"text":"one"' in until_ready(stream).replace(" ", "")
            stream.kill()
        address = f"wss://{SERVER}:{front.port}/v1/ws"
        at: dict[str, Any] = {"host": "127.0.0.1", "port": front.port, "ssl": trusting}
        async with connect(address, proxy=None, open_timeout=PATIENCE_S, **at) as socket:
            await socket.send('{"id":1,"connect":{}}')
            assert '"version":"Gapless' in str(await socket.recv())


@pytest.mark.drill
async def test_the_page_leads_from_an_empty_server_to_a_restored_one(
    machine: Machine, tmp_path: Path
) -> None:
    await set_up_servers(machine)
    with machine.redis():
        await asyncio.to_thread(install, machine)
        with machine.service():
            await eventually(lambda: is_ready(machine))
            last = await asyncio.to_thread(publish, machine, "one", "two")
            await through_nginx(machine, tmp_path)
            await asyncio.to_thread(machine.run, "gapless-backup")
            await asyncio.to_thread(publish, machine, "three")
            counted = await asyncio.to_thread(machine.run, "gapless-try-restore")
            assert counted == f"2 messages, the last has id {last}\n"
            await asyncio.to_thread(machine.run, "cp -a /opt/gapless-0.1.0 /opt/gapless-0.2.0")
            await asyncio.to_thread(machine.run, text_with("gapless-0.2.0 /opt/gapless"))
            assert stored(machine) == ["one", "two", "three"], "the old workers go on"
        with machine.service():
            await eventually(lambda: is_ready(machine))
            assert stored(machine) == ["one", "two", "three"]
        await as_admin(machine, text_with("rename to gapless_before"))
        await asyncio.to_thread(machine.run, text_with('"$(ls /var/backups/gapless'))
        with machine.service():
            await eventually(lambda: is_ready(machine))
            assert stored(machine) == ["one", "two"]
            assert await asyncio.to_thread(publish, machine, "four") > last
