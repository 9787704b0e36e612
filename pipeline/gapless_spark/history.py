"""Checks whether an offset belongs to the log's history.

A promoted standby or a restored database has another history. At its first write it makes a fence: it begins
a new epoch, keeps the earlier epochs, and records from which id on messages may be missing. Ids of the lost
messages are not given out again.
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
    """The current epoch of the log."""
    ((found,),) = rows(connection, "select epoch::text from gapless.log")
    return str(found)


def check_history(
    connection: Connection, epoch: str, id_: int, *, what: str, fail_on_loss: bool, advice: str
) -> None:
    """Check whether a read may continue after `id_`, which was reached in `epoch`. `what` names the reader.

    Raises `OtherLog` if the log never had that epoch. If the reader may have read messages up to `id_` that
    the log lacks now, raises `DataLoss`, or logs a warning without `fail_on_loss`. No message in the log is
    skipped.
    """
    ((known,),) = rows(connection, _KNOWN, (epoch,))
    if not known:
        raise OtherLog(
            f"{what} was written for the log {epoch}, and this database holds the log "
            f"{epoch_of(connection)}. Check the option url. {advice}"
        )
    ((lost_from,),) = rows(connection, _LOST_FROM, (id_,))
    if lost_from is None:
        return
    text = (
        f"the log's history has changed: messages with ids from {lost_from} to {id_} may have been read that"
        " the database does not hold any more, because another server became the primary or a backup was"
        " restored"
    )
    if fail_on_loss:
        raise DataLoss(f"{text}. {what} can be continued with the option that allows data loss")
    logging.getLogger("gapless_spark").warning("%s", text)
