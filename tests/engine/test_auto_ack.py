"""What is settled when it is handed out, in one process."""

from __future__ import annotations

from app.faces.deliveries import settling
from subscriptions.domain.errors import Code, GaplessError
from tests.engine.test_consumers import NS, Stage, ids, on_stage


@on_stage
async def test_what_could_not_be_settled_is_not_handed_out_and_comes_again(stage: Stage) -> None:
    stage.queues.subscribe("q")
    await stage.store()
    member = await stage.consumers.open(NS, "q", 10)
    hand = settling(stage.consumers)
    taken = await member.next(5)
    assert len(taken) == 1
    stage.errors["ack"] = GaplessError(Code.UNAVAILABLE, "away")
    assert await hand(member, taken) == []
    del stage.errors["ack"]
    (again,) = await member.next(5)
    assert (ids([again]), again.attempt) == (ids(taken), 1), "it was not handed out"
    (handed,) = await hand(member, [again])
    assert b"receipt" not in handed
    assert await member.next(60) == []
    stage.consumers.close(member)
