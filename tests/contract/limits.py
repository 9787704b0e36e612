"""How long the product waits for Redis in tests: as long as it takes, and briefly where a test says so.

A healthy Redis may answer late, because the machine is busy. So a limit is short only while a test's Redis
misbehaves: it ends a step that could not succeed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cache import bus as bus_module
from cache import keeping as keeping_module
from cache import link as link_module
from cache import presence as presence_module
from tests.patience import PATIENCE_S

_SHORT = (
    (keeping_module, "STEP_TIMEOUT_S", 0.2),
    (link_module, "STEP_TIMEOUT_S", 0.2),
    (bus_module, "MAX_SILENCE_S", 0.5),
    (bus_module, "SEND_TO_S", 0.2),
    (presence_module, "FLUSH_TIMEOUT_S", 0.5),
    (presence_module, "DEADLINE_S", 2.0),
)


@contextmanager
def long_limits() -> Iterator[None]:
    """No step fails because it is slow."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name, _ in _SHORT:
            patch.setattr(module, name, PATIENCE_S)
        yield


@contextmanager
def short_limits() -> Iterator[None]:
    """A step that begins here ends soon. One that began before keeps its limit."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name, seconds in _SHORT:
            patch.setattr(module, name, seconds)
        yield
