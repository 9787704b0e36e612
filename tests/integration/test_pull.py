"""A pull over HTTP whose client leaves before it is answered."""

from __future__ import annotations

from urllib.parse import urlsplit

from load.relay import connected
from tests.patience import eventually, http_client

BODY = b'{"max":10,"wait":20}'
PULL = b"POST /v1/subscriptions/left/pull HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (
    len(BODY),
    BODY,
)


async def test_a_client_that_left_while_waiting_is_given_nothing(server_url: str) -> None:
    await leave_while_waiting(server_url)


async def leave_while_waiting(url: str) -> None:
    """The message that comes then is handed out to the next pull, and for the first time."""
    async with http_client(url) as http:
        definition = {"channels": ["left.alone"], "start": "earliest"}
        await eventually(lambda: _is(http.put("/v1/subscriptions/left", json=definition), 201, 200))
        where = urlsplit(url)
        assert where.hostname is not None
        assert where.port is not None
        async with connected(where.hostname, where.port) as (_, writer):
            writer.write(PULL)
            await writer.drain()
            # Another pull of the same connection's process shows that the first was read.
            await http.post("/v1/subscriptions/left/pull", json={"max": 1})
        await http.post("/v1/channels/left.alone/messages", json={"data": 1})
        answer = await http.post("/v1/subscriptions/left/pull", json={"max": 1, "wait": 20})
        (delivery,) = answer.json()["deliveries"]
        assert delivery["attempt"] == 1


async def _is(asking: object, *statuses: int) -> bool:
    response = await asking  # type: ignore[misc]
    return response.status_code in statuses
