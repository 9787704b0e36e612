"""Gapless beside a FastAPI application of your own: it publishes in its own transactions, and reads.

`POST /orders` writes an order and publishes it with the same transaction of SQLAlchemy. The lifespan follows
the channel with the client and counts what was sold. The page at `/` follows it in the browser, through the
proxy of `nginx.conf`, with a token of whoever is logged in: this application signs tokens with a key that
Gapless knows.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import jwt
from fastapi import Cookie, Depends, FastAPI, HTTPException, Response
from fastapi.responses import FileResponse
from gapless import AsyncClient
from pydantic import BaseModel, Field
from sqlalchemy import cast, func, select
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

SOCKET = Path(".gapless/run").absolute()
DATABASE = os.environ.get("DATABASE_URL", f"postgresql+asyncpg://gapless_owner@/gapless?host={SOCKET}")
PAGE = Path(__file__).with_name("page.html")
CHANNEL = "shop.orders"
(KEY,) = json.loads(Path(os.environ["GAPLESS_JWT_KEYS"]).read_text())["keys"]
TOKEN_S = 300

engine = create_async_engine(DATABASE)
sessions = async_sessionmaker(engine, expire_on_commit=False)
sold: Counter[str] = Counter()
"""How many of each item. It is counted anew at each start: the log has them all."""
names: dict[str, str] = {}
"""Who is logged in, by session. Your application has its own way."""


class Base(DeclarativeBase):
    """The application's own tables."""


class Order(Base):
    __tablename__ = "shop_orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    cents: Mapped[int]


class Login(BaseModel):
    """Who comes in: here everybody who gives a name."""

    name: str = Field(min_length=1, max_length=40)


class NewOrder(BaseModel):
    """What a customer sends."""

    item: str = Field(min_length=1, max_length=80)
    cents: int = Field(ge=1)


def token_for(name: str) -> str:
    """A token with which somebody may follow the orders for some minutes."""
    grant = {"actions": ["subscribe"], "channels": [CHANNEL]}
    claims = {"sub": name, "exp": int(time.time()) + TOKEN_S, "grants": [grant]}
    return jwt.encode(claims, jwt.PyJWK(KEY).key, KEY["alg"], headers={"kid": KEY["kid"]})


async def publish(session: AsyncSession, order: Order) -> None:
    """Store a message with the session's transaction. Readers see it once that has committed."""
    data = cast({"order": order.id, "item": order.item, "cents": order.cents}, JSONB)
    await session.execute(select(func.gapless.publish(CHANNEL, data, str(order.id), "order.placed")))


def charge(order: Order) -> None:
    """Raises HTTPException if the card is refused."""
    if order.cents > 100_000:
        raise HTTPException(402, "the card was refused")


async def count(client: AsyncClient) -> None:
    """Count what is sold, from the first order on. The client reconnects by itself."""
    async for message in client.subscribe(CHANNEL, start="earliest"):
        sold[message.data["item"]] += 1


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    # A new token for each request, so the client goes on when one expires.
    async with AsyncClient(token=lambda: token_for("shop")) as client:
        counting = asyncio.create_task(count(client))
        yield
        counting.cancel()
        await asyncio.wait([counting])
    await engine.dispose()


app = FastAPI(title="Shop", lifespan=lifespan)


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


@app.get("/token")
async def token(response: Response, name: str = Depends(logged_in)) -> dict[str, str]:
    """A token of whoever is logged in."""
    response.headers["Cache-Control"] = "no-store"
    return {"token": token_for(name)}


@app.post("/orders", status_code=201)
async def place(wanted: NewOrder) -> dict[str, int]:
    """Store the order and tell of it: both, or neither."""
    async with sessions.begin() as session:
        order = Order(item=wanted.item, cents=wanted.cents)
        session.add(order)
        await session.flush()
        await publish(session, order)
        charge(order)
    return {"order": order.id}


@app.get("/sold")
async def count_of_each() -> dict[str, int]:
    """How many of each item were ordered."""
    return dict(sold)


@app.get("/", include_in_schema=False)
async def page() -> FileResponse:
    return FileResponse(PAGE)
