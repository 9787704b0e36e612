"""What a worker asks of the kernel for each connection."""

from __future__ import annotations

import socket

import pytest

from app.worker import _bound

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
