"""An order and its event in one transaction, with SQLAlchemy.

`gapless.publish` in SQL stores the message with the rows of the transaction: it is there if the order is, and
readers see it once the transaction has committed. No table has to be polled, and no second commit can fail.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from gapless import AsyncClient
from sqlalchemy import cast, func, select
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

SOCKET = Path(".gapless/run").absolute()
DATABASE = os.environ.get("DATABASE_URL", f"postgresql+asyncpg://gapless_owner@/gapless?host={SOCKET}")
CHANNEL = "example.orders"


class Base(DeclarativeBase):
    """The application's own tables."""


class Order(Base):
    __tablename__ = "example_orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


async def place(session: AsyncSession, item: str) -> None:
    """Store the order, and tell of it. Neither happens before the caller commits."""
    order = Order(item=item)
    session.add(order)
    await session.flush()
    data = cast({"order": order.id, "item": item}, JSONB)
    await session.execute(select(func.gapless.publish(CHANNEL, data, str(order.id), "order.placed")))


async def main() -> None:
    engine = create_async_engine(DATABASE)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with AsyncSession(engine) as session:
        async with session.begin():
            await place(session, "a kettle")
        try:
            async with session.begin():
                await place(session, "a teapot")
                raise RuntimeError("the card was refused")
        except RuntimeError as error:
            print(f"the teapot is not ordered: {error}")
        orders = (await session.scalars(select(Order.item).order_by(Order.id))).all()
    await engine.dispose()
    async with AsyncClient() as client:
        told = [message.data["item"] async for message in client.iter_history(CHANNEL)]
    print(f"orders: {', '.join(orders)}")
    print(f"events: {', '.join(told)}")


if __name__ == "__main__":
    asyncio.run(main())
