"""Reports the gaps of a subscription."""

from __future__ import annotations

from collections.abc import Callable

from gapless._lost import Gap
from gapless._stream import log


def tell(subscription: str, gap: Gap, on_gap: Callable[[Gap], object] | None) -> None:
    """Calls `on_gap`, or logs the gap. An exception of `on_gap` must not cost any delivery."""
    if on_gap is None:
        log.warning("%s: %s", subscription, gap)
        return
    try:
        on_gap(gap)
    except Exception:  # noqa: BLE001 (the function is the caller's; its errors must not lose deliveries)
        log.exception("on_gap failed for %s", subscription)
