"""CPU seconds of operations. Rates depend on what else the machine does; these hardly do."""

from __future__ import annotations

import os
from collections.abc import Sequence

from load.children import stat_of
from load.server import Server

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PER = 10_000


class Cost:
    """What the processes of a service and those of its embedded databases spend while its blocks run. The
    caller counts the `operations` in them."""

    def __init__(self, server: Server) -> None:
        self.operations = 0
        self._server = server
        self._service_s = self._all_s = 0.0

    def __enter__(self) -> None:
        self._add(-1)

    def __exit__(self, *error: object) -> None:
        self._add(1)

    def _add(self, sign: int) -> None:
        self._service_s += sign * cpu_s(self._server.own())
        self._all_s += sign * cpu_s(self._server.family())

    @property
    def service_s(self) -> float:
        """CPU seconds of the service for 10,000 operations."""
        return self._service_s * PER / self.operations

    @property
    def all_s(self) -> float:
        """The same with its databases."""
        return self._all_s * PER / self.operations

    def __str__(self) -> str:
        if not self.operations:
            return ""
        return f"{self.service_s:.3g} s + {self.all_s - self.service_s:.3g} s databases"


def cpu_s(pids: Sequence[int]) -> float:
    """The CPU seconds of these processes and of their ended children."""
    fields = [stat_of(pid)[11:15] for pid in pids]
    return sum(int(ticks) for each in fields for ticks in each) * _TICK_S
