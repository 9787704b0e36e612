"""Whether a position belongs to the history that a log has.

A promoted standby or a restored database has another one. It puts up a fence at its first write: it begins a
new epoch, keeps the epochs before it, and says from which id on it may lack messages. No id of the lost past
is given out again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from gapless_spark.database import rows
from gapless_spark.errors import DataLoss, OtherLog

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Connection

_KNOWN = "select exists (select from gapless.fences f where f.epoch::text = $1)"
_LOST_FROM = "select min(f.lost_from) from gapless.fences f where f.lost_from <= $1 and f.base > $1"


def epoch_of(connection: Connection) -> str:
    """The epoch in force."""
    ((found,),) = rows(connection, "select epoch::text from gapless.log")
    return str(found)


def check_history(
    connection: Connection, epoch: str, id_: int, *, what: str, fail_on_loss: bool, advice: str
) -> None:
    """Whether reading can go on after `id_`, which was reached under `epoch`. `what` names who stands there.

    Raises `OtherLog` where the log never had that epoch. Where messages up to `id_` may have been read that
    the log lacks now, raises `DataLoss`, or warns where `fail_on_loss` is off. Nothing that is there is
    passed over.
    """
    ((known,),) = rows(connection, _KNOWN, (epoch,))
    if not known:
        raise OtherLog(
            f"{what} was written for the log {epoch}, and this database holds the log "
            f"{epoch_of(connection)}. Look at the option url. {advice}"
        )
    ((lost_from,),) = rows(connection, _LOST_FROM, (id_,))
    if lost_from is None:
        return
    text = (
        f"the log's history has changed: messages with ids from {lost_from} to {id_} may have been read that"
        " the database does not hold any more, since another server became the primary or an earlier moment"
        " was restored"
    )
    if fail_on_loss:
        raise DataLoss(f"{text}. {what} can go on with what is there, when told that losses are allowed")
    logging.getLogger("gapless_spark").warning("%s", text)
