"""Acks, nacks, releases and extensions for any face: from the JSON of a request to that of its results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from app.message.deliveries import encode_results
from app.message.receipts import ReceiptCodec
from app.message.settlement import parse_extend, parse_nack, parse_receipts, parse_release
from app.metrics.registry import SETTLED
from subscriptions.domain.delivery import Receipt, Settled
from subscriptions.domain.principal import Action, Lifetime, Noun, Principal
from subscriptions.engine.durable.consumers import Consumers


class Acks:
    """Settles deliveries. Each method takes a body and answers after the commit, with a result for each
    receipt. Name None: receipts of any subscription in the namespace will do, if the principal may consume
    from it.

    Raises the errors of a body, those of `Consumers`, and `forbidden`.
    """

    def __init__(self, consumers: Consumers, receipts: ReceiptCodec) -> None:
        self._consumers = consumers
        self._codec = receipts

    def __repr__(self) -> str:
        return f"Acks({self._consumers!r})"

    async def ack(self, body: bytes, principal: Principal, name: str | None) -> bytes:
        texts = parse_receipts(body)
        receipts = await self._read(texts, principal, name)
        return _results(texts, await self._consumers.ack(principal.namespace, name, receipts))

    async def nack(self, body: bytes, principal: Principal, name: str | None) -> bytes:
        texts, how = parse_nack(body)
        receipts = await self._read(texts, principal, name)
        return _results(texts, await self._consumers.nack(principal.namespace, name, receipts, how))

    async def release(self, body: bytes, principal: Principal, name: str | None) -> bytes:
        texts, delay_s = parse_release(body)
        receipts = await self._read(texts, principal, name)
        return _results(texts, await self._consumers.release(principal.namespace, name, receipts, delay_s))

    async def extend(self, body: bytes, principal: Principal, name: str | None) -> bytes:
        texts, ack_wait_s = parse_extend(body)
        receipts = await self._read(texts, principal, name)
        settled = await self._consumers.extend(principal.namespace, name, receipts, ack_wait_s)
        self._hold(principal.lifetime, receipts, settled)
        return _results(texts, settled)

    def _hold(
        self, lifetime: Lifetime, receipts: Sequence[Receipt | None], settled: Sequence[Settled]
    ) -> None:
        """Have the leases of pulls that were extended end with the credential."""
        extended = {r: s.deadline_us for r, s in zip(receipts, settled, strict=True) if r and not r.holder}
        until = {r: deadline_us for r, deadline_us in extended.items() if deadline_us is not None}
        self._consumers.leases.hold(lifetime, list(until), max(until.values(), default=0))

    async def _read(
        self, texts: Sequence[str], principal: Principal, name: str | None
    ) -> list[Receipt | None]:
        receipts = self._codec.decode_all(texts)
        if name is None and principal.grants is not None:
            names = await self._consumers.names(principal.namespace, receipts)
            principal.require((Action.CONSUME,), Noun.SUBSCRIPTION, names)
        return receipts


def _results(texts: Sequence[str], settled: Sequence[Settled]) -> bytes:
    for status, times in Counter([item.status for item in settled]).items():
        SETTLED.labels(status.value).inc(times)
    return encode_results(texts, settled)
