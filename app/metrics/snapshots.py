"""Metrics that one worker measures, for the worker that answers a scrape.

The client library keeps a value for each worker in files that only grow, so a deleted subscription would be
reported for ever. Here a worker replaces all its metrics of a topic at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec
from prometheus_client import Metric
from prometheus_client.registry import Collector


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One line of the exposition: the full name, the labels and the value."""

    name: str
    labels: dict[str, str]
    value: float


class Family(msgspec.Struct, frozen=True, array_like=True):
    """The samples of one metric, of `kind` `gauge` or `counter`; a counter's samples end in `_total`."""

    name: str
    text: str
    kind: str
    samples: list[Sample]


_decoder = msgspec.json.Decoder(list[Family])


class Snapshots(Collector):
    """Keeps the newest metrics of each topic: in `folder`, which the workers of one supervisor share, or
    without a folder in this process."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._own: dict[str, list[Family]] = {}

    def put(self, topic: str, families: list[Family]) -> None:
        """Replaces the metrics of the topic. `topic` is a part of a file name. Raises OSError."""
        if self._folder is None:
            self._own[topic] = families
            return
        fresh = self._folder / f"{topic}.{os.getpid()}.new"
        fresh.write_bytes(msgspec.json.encode(families))
        fresh.replace(self._folder / f"{topic}.snapshot")

    def collect(self) -> Iterable[Metric]:
        """Every metric once, with the samples of all workers."""
        found: dict[str, Metric] = {}
        for families in self._all():
            for family in families:
                metric = found.setdefault(family.name, Metric(family.name, family.text, family.kind))
                for sample in family.samples:
                    metric.add_sample(sample.name, sample.labels, sample.value)
        return found.values()

    def _all(self) -> Iterable[list[Family]]:
        if self._folder is None:
            return list(self._own.values())
        return [_decoder.decode(path.read_bytes()) for path in sorted(self._folder.glob("*.snapshot"))]


def family(name: str, text: str, kind: str, samples: Iterable[tuple[dict[str, str], float]]) -> Family:
    """A family of samples, given by their labels."""
    full = f"{name}_total" if kind == "counter" else name
    return Family(name, text, kind, [Sample(full, labels, float(value)) for labels, value in samples])
