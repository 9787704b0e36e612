"""Tenants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Limits = Mapping[str, float]
"""Limits of a namespace by name."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace. `shared`: every process serves it; otherwise those whose setting names it."""

    name: str
    limits: Limits
    shared: bool
