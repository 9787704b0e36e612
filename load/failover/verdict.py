"""What must hold after the primary has changed."""

from __future__ import annotations

from collections.abc import Iterator

from load.failover.crowd import CHANNELS, Crowd, Reader


def breaches(crowd: Crowd, kept: set[int]) -> Iterator[str]:
    """Everything that was broken, a line each; `kept` are the ids that the log holds in the end."""
    memory = crowd.memory
    for id_, numbers in sorted(memory.meanings.items()):
        if len(numbers) > 1:
            yield f"id {id_} stood for {sorted(numbers)}"
    lost = set(memory.meanings) - kept
    for reader in crowd.readers:
        yield from _reader_breaches(reader, kept, lost)
    missing = kept - set(memory.delivered)
    if missing:
        yield f"{len(missing)} messages never reached the member, {min(missing)} first"


def _reader_breaches(reader: Reader, kept: set[int], lost: set[int]) -> Iterator[str]:
    if reader.got != sorted(set(reader.got)):
        yield f"reader {reader.name}: doubled or out of order"
    if reader.channels != CHANNELS[:1]:
        missing = {id_ for id_ in kept if id_ > (reader.began or 0)} - set(reader.got)
        if missing:
            yield f"reader {reader.name}: lacks {len(missing)}, {min(missing)} first"
    seen = lost & set(reader.got)
    untold = [id_ for id_ in seen if not any(first <= id_ <= last for first, last in reader.told)]
    if untold:
        yield f"reader {reader.name}: not told that {len(untold)} it saw are lost, {min(untold)} first"
