"""What all worlds of faults have in common."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Faults are what these worlds are made of: they need not be told of each."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
