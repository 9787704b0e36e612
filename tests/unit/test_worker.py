"""What a worker asks of the kernel for each connection, and what it does at a signal."""

from __future__ import annotations

import asyncio
import signal
import socket
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn

from app.process.worker import Server, _bound

linux_only = pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the kernel does not do this")


@linux_only
@pytest.mark.parametrize("patience_s", [10.0, 60.0, 600.0])
def test_the_kernel_waits_longer_for_a_reader_than_the_service_does(patience_s: float) -> None:
    """Or a reader is cut off early, without a goodbye, and without being counted."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        _bound(listening, patience_s)
        with socket.create_connection(listening.getsockname()), listening.accept()[0] as accepted:
            waits_ms = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert patience_s * 1000 < waits_ms <= patience_s * 1000 + 10_000


async def test_a_signal_only_leaves_word() -> None:
    """Python calls the handler between any two lines, in the middle of what it would change."""
    told: list[str] = []
    service = SimpleNamespace(dismiss=lambda: told.append("dismissed"))
    application: Any = SimpleNamespace(service=service)
    server = Server(uvicorn.Config(application), application, None)
    server.handle_exit(signal.SIGTERM, None)
    assert server.should_exit
    assert not told
    await asyncio.sleep(0)
    assert told == ["dismissed"]
