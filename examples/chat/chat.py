"""A chat that can be edited: browsers read and write by themselves, this program says who they are.

It logs people in: here everybody who gives a name. It signs a token for each with the key in
`GAPLESS_JWT_KEYS`, so that Gapless knows who says, edits and reads. And it moderates: a durable subscription
hands it all that is said or edited, and it deletes what has a forbidden word. Without `GAPLESS_JWT_KEYS` it
signs nothing: that is for an installation without credentials, where everybody may change everything.

`terminal.py` is the same chat in a terminal. `/side-by-side` reads a room twice, with EventSource and with
the JavaScript client of Centrifugo; it is for an installation without credentials.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import jwt
import uvicorn
from fastapi import Cookie, Depends, FastAPI, HTTPException, Response
from fastapi.responses import FileResponse, HTMLResponse
from gapless import AsyncClient, AsyncDelivery, NotFound
from pydantic import BaseModel, Field

ROOMS = ["example.chat.lobby", "example.chat.kitchen"]
PATTERN = "example.chat.*"
MODERATION = "example-chat-moderation"
FORBIDDEN = re.compile(r"\bspam\b", re.IGNORECASE)
SERVICE = os.environ.get("GAPLESS_URL", "http://127.0.0.1:8080")
PAGE = Path(__file__).with_name("page.html")
SIDE_BY_SIDE = PAGE.with_name("side_by_side.html")
MODULES = Path(os.environ.get("NODE_MODULES", PAGE.with_name("node_modules")))
"""Where `npm install centrifuge` has put the client."""

KEYS = os.environ.get("GAPLESS_JWT_KEYS")
KEY = json.loads(Path(KEYS).read_text())["keys"][0] if KEYS else None
TOKEN_S = 300
SOMEBODY = [{"actions": ["publish", "subscribe"], "channels": [PATTERN]}]
"""What everybody may do: read, say, and change what they said themselves."""
MODERATOR = [
    {"actions": ["publish", "moderate", "subscribe", "manage"], "channels": [PATTERN]},
    {"actions": ["consume", "manage"], "subscriptions": [MODERATION]},
]
names: dict[str, str] = {}
"""Who is logged in, by session. An application of yours has its own way."""


class Login(BaseModel):
    """Who comes in."""

    name: str = Field(min_length=1, max_length=40)


def token_for(name: str, grants: list[dict[str, Any]]) -> str:
    """A token that is good for some minutes; empty without a key."""
    if KEY is None:
        return ""
    claims = {"sub": name, "exp": int(time.time()) + TOKEN_S, "grants": grants}
    return jwt.encode(claims, jwt.PyJWK(KEY).key, KEY["alg"], headers={"kid": KEY["kid"]})


async def moderate(client: AsyncClient) -> None:
    """Judge all that is said, from the first message on. It goes on where it was after a crash: what it has
    not acked comes again, and deleting twice changes nothing."""

    async def judge(delivery: AsyncDelivery) -> None:
        message = delivery.message
        said = message.data.get("text", "") if isinstance(message.data, dict) else ""
        if message.action not in ("delete", "annotate") and FORBIDDEN.search(str(said)):
            target = message.target if message.action == "update" else message.id
            with suppress(NotFound):  # retention was faster
                await client.publish(message.channel, None, target=target, action="delete")

    await client.subscriptions.create(MODERATION, [PATTERN], start="earliest")
    await client.work(MODERATION, judge)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    # A new token for each request, so the client goes on when one expires.
    async with AsyncClient(SERVICE, token=lambda: token_for("moderator", MODERATOR)) as client:
        app.state.client = client
        for room in ROOMS:
            await client.channels.put(room)
        moderating = asyncio.create_task(moderate(client))
        yield
        moderating.cancel()
        await asyncio.wait([moderating])


app = FastAPI(lifespan=lifespan)


@app.get("/", response_class=HTMLResponse)
async def page() -> str:
    """The page, told where the service is."""
    return _told(PAGE)


@app.get("/side-by-side", response_class=HTMLResponse)
async def side_by_side() -> str:
    """The page that reads in two ways."""
    return _told(SIDE_BY_SIDE)


@app.get("/centrifuge.js")
async def centrifuge() -> FileResponse:
    """The JavaScript client, as it was installed."""
    return FileResponse(MODULES / "centrifuge" / "dist" / "centrifuge.js")


def _told(page: Path) -> str:
    return page.read_text().replace("{{service}}", SERVICE).replace("{{room}}", ROOMS[0])


def logged_in(session: str = Cookie("")) -> str:
    """The name of whoever asks."""
    if session not in names:
        raise HTTPException(401, "log in first")
    return names[session]


@app.post("/login", status_code=204)
async def login(who: Login, response: Response) -> None:
    """Remember the browser by a cookie."""
    session = secrets.token_urlsafe(16)
    names[session] = who.name
    # Who has a marker in a room is told how much is unread there.
    await app.state.client.markers.move_all([(room, 0) for room in ROOMS], user=who.name)
    response.set_cookie("session", session, httponly=True, samesite="strict")


@app.post("/token")
async def token(response: Response, name: str = Depends(logged_in)) -> dict[str, str]:
    """Who asks, and a token of theirs."""
    response.headers["Cache-Control"] = "no-store"
    return {"user": name, "token": token_for(name, SOMEBODY)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=8090)
    port = parser.parse_args().port
    print(f"The chat is on http://127.0.0.1:{port}", flush=True)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
