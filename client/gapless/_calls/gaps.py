"""Reports the gaps of a subscription."""

from __future__ import annotations

import logging
from collections.abc import Callable

from gapless._lost import Gap

log = logging.getLogger("gapless")


def tell(subscription: str, gap: Gap, on_gap: Callable[[Gap], object] | None) -> None:
    """Calls `on_gap`, or logs the gap. An exception of `on_gap` must not cost any delivery."""
    if on_gap is None:
        log.warning("%s: %s", subscription, gap)
        return
    try:
        on_gap(gap)
    except Exception:
        log.exception("on_gap failed for %s", subscription)
