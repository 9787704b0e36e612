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

    def __str__(self) -> str:
        if not self.operations:
            return ""
        share = PER / self.operations
        databases_s = self._all_s - self._service_s
        return f"{self._service_s * share:.2f} s + {databases_s * share:.2f} s databases"


def cpu_s(pids: Sequence[int]) -> float:
    """The CPU seconds of these processes and of their ended children."""
    fields = [stat_of(pid)[11:15] for pid in pids]
    return sum(int(ticks) for each in fields for ticks in each) * _TICK_S
