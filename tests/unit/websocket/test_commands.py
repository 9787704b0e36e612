"""Messages of a WebSocket client, taken apart into commands."""

from __future__ import annotations

import pytest

from app.faces.websocket.commands import MAX_COMMANDS, split

PING = b'{"id":1,"ping":{}}'


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_message_holds_at_most_1000_commands(end: bytes) -> None:
    assert split(b"\n".join([PING] * MAX_COMMANDS) + end) == [PING] * MAX_COMMANDS
    assert split(b"\n".join([PING] * (MAX_COMMANDS + 1)) + end) is None


def test_an_empty_line_is_no_command_and_their_number_has_a_bound() -> None:
    assert split(b"\n \n".join([PING, PING])) == [PING, PING]
    assert split(b"\n\n".join([PING] * MAX_COMMANDS)) == [PING] * MAX_COMMANDS
    assert split(b"\n" * (2 * MAX_COMMANDS + 1)) is None
