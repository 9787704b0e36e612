"""Gapless beside a FastAPI application of your own: it publishes in its own transactions, and reads.

`POST /orders` writes an order and publishes it with the same transaction of SQLAlchemy. The lifespan follows
the channel with the client and counts what was sold. The page at `/` follows it in the browser, through the
proxy of `nginx.conf`.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, HTTPException
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

engine = create_async_engine(DATABASE)
sessions = async_sessionmaker(engine, expire_on_commit=False)
sold: Counter[str] = Counter()
"""How many of each item. It is counted anew at each start: the log has them all."""


class Base(DeclarativeBase):
    """The application's own tables."""


class Order(Base):
    __tablename__ = "shop_orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    cents: Mapped[int]


class NewOrder(BaseModel):
    """What a customer sends."""

    item: str = Field(min_length=1, max_length=80)
    cents: int = Field(ge=1)


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
    async with AsyncClient() as client:
        counting = asyncio.create_task(count(client))
        yield
        counting.cancel()
        await asyncio.wait([counting])
    await engine.dispose()


app = FastAPI(title="Shop", lifespan=lifespan)


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
