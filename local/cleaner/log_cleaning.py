"""Clean a log that is in use: the cleaner behind the log's gate.

Truncating or replacing records during a pass would let the pass restore them. A pass therefore runs between
`CleaningGate.try_start` and `end`, and `Log.truncate_to` and `Log.restart_at` first pause the gate. An aborted pass
restores the checkpoint in memory before the waiting call continues.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from local.cleaner import cleaner
from local.cleaner.cleaner import DEFAULT_BUFFER, CleaningResult
from local.cleaner.offset_map import Buffer
from local.errors import CleaningAborted, Conflict, NotFound
from local.log import Log
from local.settings import DAY_MS
from local.storage import Storage


def clean_log(
    log: Log,
    storage: Storage,
    *,
    clean_from: int = 0,
    apart_at: int = 0,
    upto_offset: int | None = None,
    now_ms: int,
    delete_delay_ms: int = 0,
    delete_retention_ms: int = DAY_MS,
    tombstones_below: int | None = 0,
    buffer: Buffer = DEFAULT_BUFFER,
    should_stop: Callable[[], bool] = lambda: False,
    throttle: Callable[[int], None] = lambda size_bytes: None,
    clock: Callable[[], float] = time.monotonic,
    announce: Callable[[], None] = lambda: None,
) -> CleaningResult | None:
    """Run `cleaner.clean` as the only pass over this log.

    Raises CleaningAborted if the log is or becomes paused, or if retention deletes its segments during the pass.
    """
    gate = log.cleaning
    if not gate.try_start():
        raise CleaningAborted(
            "cannot clean the log now, its cleaning state does not allow it", partition=log.partition, state=gate.now
        )
    before, first_offset = log.cleaner_offset, log.local_log_start_offset

    def undo() -> None:
        log.cleaner_offset = before

    is_done = False
    try:
        result = cleaner.clean(
            log,
            storage,
            clean_from=clean_from,
            apart_at=apart_at,
            upto_offset=upto_offset,
            now_ms=now_ms,
            delete_delay_ms=delete_delay_ms,
            delete_retention_ms=delete_retention_ms,
            tombstones_below=tombstones_below,
            buffer=buffer,
            should_stop=lambda: gate.is_aborted or should_stop(),
            throttle=throttle,
            clock=clock,
            announce=announce,
        )
    except (NotFound, Conflict) as error:
        if log.local_log_start_offset == first_offset:
            raise
        raise CleaningAborted(
            "the cleaner pass was aborted, segments of the log were deleted during the pass", partition=log.partition
        ) from error
    finally:
        is_done = gate.end(undo)
    if not is_done:
        raise CleaningAborted("the cleaner was stopped on request", partition=log.partition)
    return result
