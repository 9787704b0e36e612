"""The chat in a terminal: what is written is said, and what others say, edit and delete is shown.

    terminal.py NAME [ROOM]

A line that begins with a slash changes a message, by the number before it: `/edit 7 better words`,
`/delete 7`, `/reply 7 words`, `/like 7`, `/unlike 7`. `/readers` tells who has read how far. With
credentials, `GAPLESS_TOKEN` is a token of whoever is NAME.
"""

from __future__ import annotations

import sys
import threading
from contextlib import suppress

from gapless import Client, GaplessError, NotFound, Original

ME = sys.argv[1] if sys.argv[1:] else sys.exit(__doc__)
ROOM = sys.argv[2] if sys.argv[2:] else "example.chat.lobby"


def show(message: Original) -> None:
    """Print a message as it is now."""
    if message.deleted:
        text = "(deleted)"
    elif isinstance(message.data, dict):
        text = f"{message.data.get('text')}{' (edited)' if message.data.get('edited') else ''}"
    else:
        text = repr(message.data)
    likes = message.annotations.get("👍", {}).get("distinct", 0)
    notes = [f"to {message.target}"] if message.action == "reply" else []
    notes += [f"{message.replies} replies"] if message.replies else []
    notes += [f"👍 {likes}"] if likes else []
    told = f" [{', '.join(notes)}]" if notes else ""
    print(f"{message.id} {message.sender or message.key}: {text}{told}", flush=True)


def listen(client: Client) -> None:
    """Show the room as it is, and all that changes. What is shown is read."""
    with client.conversation(ROOM, newest=50) as chat:
        for message in chat.messages:
            show(message)
        newest = max((message.version for message in chat.messages), default=0)
        with suppress(NotFound):  # nobody has said anything yet
            client.markers.move(ROOM, newest, user=ME)
        for message in chat:
            show(message)
            client.markers.move(ROOM, message.version, user=ME)


def do(client: Client, line: str) -> None:
    """Carry out one line."""
    command, _, rest = line.partition(" ")
    number, _, text = rest.partition(" ")
    said = {"name": ME, "text": text}
    match command:
        case "/edit":
            client.publish(ROOM, said | {"edited": True}, key=ME, target=int(number), action="update")
        case "/delete":
            client.publish(ROOM, None, key=ME, target=int(number), action="delete")
        case "/reply":
            client.publish(ROOM, said, key=ME, target=int(number), action="reply")
        case "/like" | "/unlike":
            client.publish(
                ROOM,
                None,
                key=ME,
                target=int(number),
                action="annotate",
                annotation="👍",
                mode="distinct",
                remove=command == "/unlike",
            )
        case "/readers":
            for marker in client.markers.of(ROOM):
                print(f"{marker.user} has read up to {marker.id}", flush=True)
        case _:
            client.publish(ROOM, said | {"text": line}, key=ME)


with Client() as client:
    for room in client.markers.unread(ROOM, user=ME):
        print(f"{room.unread} unread in {room.channel}", flush=True)
    threading.Thread(target=listen, args=[client], daemon=True).start()
    for line in sys.stdin:
        try:
            do(client, line.strip())
        except (GaplessError, ValueError) as error:
            print(f"not done: {error}", flush=True)
