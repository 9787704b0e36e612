"""nginx with the configuration of docs/operations.md. Only its addresses are changed, and TLS is left out if
there is no certificate."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from load.children import CHECKOUT, Child, free_port, wait_for_port
from load.drill import temporary_home
from load.install import debian
from load.wire import Target

PAGE = CHECKOUT / "docs" / "operations.md"
AROUND = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr error;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {documented}
}}
"""


def documented(port: int, upstream: int, certificate: Path | None = None) -> str:
    """The page's text for nginx on `port`, before a service on the port `upstream`. The certificate is a file
    that also has the key."""
    text: str
    tls = certificate is not None
    (text,) = re.findall(r"^```\n(map .*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    for found, instead in (
        (r"127\.0\.0\.1:8080", f"127.0.0.1:{upstream}"),
        (r"listen 443 ssl;", f"listen 127.0.0.1:{port}{' ssl' if tls else ''};"),
        (r"ssl_certificate +\S+;", f"ssl_certificate {certificate};" if tls else ""),
        (r"ssl_certificate_key +\S+;", f"ssl_certificate_key {certificate};" if tls else ""),
    ):
        text, count = re.subn(found, instead, text)
        assert count == 1, found
    return text


@contextmanager
def nginx(upstream: Target, certificate: Path | None = None, beside: str = "") -> Iterator[Target]:
    """Run it before a service; it is installed if it is missing. `beside` is the text of another file in
    `conf.d`."""
    if shutil.which("nginx") is None:
        debian("nginx-light")
    port = free_port()
    with temporary_home("nginx") as folder:
        config = folder / "nginx.conf"
        text = documented(port, upstream.port, certificate)
        config.write_text(AROUND.format(folder=folder, documented=f"{text}\n{beside}"))
        child = Child(["nginx", "-p", str(folder), "-c", str(config)], folder / "log").start()
        try:
            wait_for_port(port, child)
            yield Target("127.0.0.1", port)
        finally:
            child.stop(grace_s=3.0)
