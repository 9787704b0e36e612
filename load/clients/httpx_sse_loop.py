"""PyPI `httpx-sse`: it does not reconnect, so this is the loop of its documentation, with Last-Event-ID."""

from __future__ import annotations

import json
import sys
import time

import httpx
from httpx_sse import connect_sse


def main(url: str, total: int) -> None:
    """Print the number of each message, until 2.5 s after the last one, to see doubled ones."""
    last_id, wait, until = "", 0.0, float("inf")
    with httpx.Client(timeout=httpx.Timeout(5, read=2.5)) as client:
        while time.monotonic() < until:
            time.sleep(wait)
            headers = {"Last-Event-ID": last_id} if last_id else {}
            try:
                with connect_sse(client, "GET", url, headers=headers) as source:
                    for event in source.iter_sse():
                        last_id = event.id
                        wait = event.retry / 1000 if event.retry is not None else wait
                        if event.event == "message":
                            number = json.loads(event.data)["data"]["n"]
                            print(number, flush=True)
                            until = time.monotonic() + 2.5 if number == total - 1 else until
            except httpx.TransportError:
                continue


main(sys.argv[1], int(sys.argv[2]))
