"""A chat room: browsers read from Gapless, and say something through this program.

This program is where an application checks who somebody is: here everybody who gives a name. It publishes
with the Python client, and asks Gapless for tickets with the key in `GAPLESS_TOKEN`, if there is one. With a
ticket the page follows the channel by the browser's own EventSource: what is said does not pass through here
on its way. `/side-by-side` reads the same channel twice: with EventSource, and with the JavaScript client of
Centrifugo; it is for an installation without credentials.
"""

from __future__ import annotations

import argparse
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import uvicorn
from fastapi import Cookie, Depends, FastAPI, HTTPException, Response
from fastapi.responses import FileResponse, HTMLResponse
from gapless import AsyncClient
from pydantic import BaseModel, Field

ROOM = "example.chat.lobby"
SERVICE = os.environ.get("GAPLESS_URL", "http://127.0.0.1:8080")
PAGE = Path(__file__).with_name("page.html")
SIDE_BY_SIDE = PAGE.with_name("side_by_side.html")
MODULES = Path(os.environ.get("NODE_MODULES", PAGE.with_name("node_modules")))
"""Where `npm install centrifuge` has put the client."""


KEY = {"Authorization": f"Bearer {key}"} if (key := os.environ.get("GAPLESS_TOKEN")) else {}
names: dict[str, str] = {}
"""Who is logged in, by session. An application of yours has its own way."""


class Login(BaseModel):
    """Who comes in."""

    name: str = Field(min_length=1, max_length=40)


class Said(BaseModel):
    """What the page sends. `number` counts in one page, so that a repeated request is one message."""

    text: str = Field(min_length=1, max_length=2000)
    page: str = Field(min_length=1, max_length=40)
    number: int


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with (
        AsyncClient(SERVICE) as client,
        httpx.AsyncClient(base_url=SERVICE, headers=KEY) as service,
    ):
        app.state.client, app.state.service = client, service
        yield


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
    return page.read_text().replace("{{service}}", SERVICE).replace("{{room}}", ROOM)


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
    response.set_cookie("session", session, httponly=True, samesite="strict")


@app.post("/ticket", dependencies=[Depends(logged_in)])
async def ticket() -> dict[str, str]:
    """A ticket for one stream of the room, good for 30 s."""
    answer = await app.state.service.post("/v1/tickets", json={"channels": [ROOM]})
    answer.raise_for_status()
    made: dict[str, str] = answer.json()
    return made


@app.post("/say")
async def say(said: Said, name: str = Depends(logged_in)) -> dict[str, int]:
    """Stored once `publish` returns. Its key is who said it: one person's messages keep their order."""
    published = await app.state.client.publish(
        ROOM,
        {"name": name, "text": said.text},
        key=name,
        idempotency_key=f"{said.page}-{said.number}",
    )
    return {"seq": published.seq}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=8090)
    port = parser.parse_args().port
    print(f"The chat is on http://127.0.0.1:{port}", flush=True)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
