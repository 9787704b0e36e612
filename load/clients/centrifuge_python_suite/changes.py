"""The changes to the text of the suite, each with the number of its places.

The suite is written for one Centrifugo, with the settings of the suite's docker-compose.yml. What a setting
does there, a client of Gapless asks for itself, or a policy says. No change touches what a test asserts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from load.verdict import NoVerdictError

CLIENT_TESTS: Final = "test_client.py"
PERSONAL: Final = r'(?!,\s*\)\s*channel = "#42")'
"""Before the channel of a user's own: this test is about the user of the token, and keeps it."""
TRIMMED: Final = """\
        while (await publisher_sub.history(limit=1)).publications[0].offset < 4:
            await asyncio.sleep(0.05)
"""


class Change(NamedTuple):
    """In one file of the tests, `new` in place of each match of `old`, of which there are `places`."""

    why: str
    file: str
    old: str
    new: str
    places: int


def changes(host: str) -> tuple[Change, ...]:
    """The changes for the service on this host and port."""
    return (
        Change(
            "the address of the service",
            CLIENT_TESTS,
            "ws://localhost:8000/connection/websocket",
            f"ws://{host}/v1/ws",
            38,
        ),
        Change(
            "the address that is asked first", "centrifugo.py", "http://localhost:8000", f"http://{host}", 1
        ),
        Change(
            "tokens of clients: nothing can check one, so it is refused",
            CLIENT_TESTS,
            rf",\s*get_token=test_get_client_token\b{PERSONAL}",
            "",
            34,
        ),
        Change(
            "tokens of subscriptions, likewise",
            CLIENT_TESTS,
            r",\s*get_token=test_get_subscription_token\b",
            "",
            30,
        ),
        Change(
            "force_push_join_leave: here a client asks for joins and leaves",
            CLIENT_TESTS,
            r"sub1 = client1\.new_subscription\(channel\)",
            "sub1 = client1.new_subscription(channel, join_leave=True)",
            3,
        ),
        Change(
            "a namespace is the first token of a channel, and tokens are separated by dots",
            CLIENT_TESTS,
            '"smallhistory:get_state_"',
            '"smallhistory.get_state_"',
            1,
        ),
        Change(
            "retention comes a moment after a publish, so the test waits for it",
            CLIENT_TESTS,
            r"^        # Reconnect — SDK tries to recover from the old position, server returns$",
            rf"{TRIMMED}\g<0>",
            1,
        ),
    )


def rewrite(tests: Path, wanted: Sequence[Change]) -> list[str]:
    """Carry out the changes in a folder of tests. Returns a line about each. Raises NoVerdictError if one has
    another number of places."""
    lines = []
    for change in wanted:
        file = tests / change.file
        text, places = re.subn(change.old, change.new, file.read_text(), flags=re.MULTILINE)
        if places != change.places:
            raise NoVerdictError(f"{change.why}: {places} places in {change.file}, not {change.places}")
        file.write_text(text)
        lines.append(f"{places:>3} in {change.file}: {change.why}")
    return lines
