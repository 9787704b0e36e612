"""Reports the gaps of a subscription."""

from __future__ import annotations

from collections.abc import Callable

from gapless._lost import Gap
from gapless._stream import log


def tell(subscription: str, gap: Gap, on_gap: Callable[[Gap], object] | None) -> None:
    """Calls `on_gap`, or logs the gap. An exception of `on_gap` must not cost any delivery."""
    if on_gap is None and gap.ids is not None:
        log.warning("messages with ids from %d to %d may be lost: the primary changed", *gap.ids)
        return
    if on_gap is None:
        what = (gap.missed, gap.channel, subscription, gap.first_seq)
        log.warning("retention removed %d messages of %s before %s had settled them: seq %d is next", *what)
        return
    try:
        on_gap(gap)
    except Exception:  # noqa: BLE001 (the function is the caller's; its errors must not lose deliveries)
        log.exception("on_gap failed for %s", subscription)
