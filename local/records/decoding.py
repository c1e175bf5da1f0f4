"""Decode records up to a damaged batch, and raise Corrupt only after them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from local import kernels
from local.errors import Corrupt

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from local.format.columns import BatchTable, Columns


def decode_up_to_damage(data: Buffer, *, table: BatchTable | None = None) -> Iterator[Columns]:
    """Like `kernels.decode_in_steps`, but returns all batches before a damaged one.

    `decode_in_steps` checks several batches before it returns the first of them. After the sound batches this function
    raises Corrupt; its fact ``at`` is the position of the damaged batch.
    """
    done = 0
    try:
        for columns in kernels.decode_in_steps(data, table=table):
            done += len(columns.table)
            yield columns
            del columns
    except Corrupt as error:
        rows = kernels.scan_batches(data, verify=False) if table is None else table
        at = error.facts.get("at")
        bad = int(np.searchsorted(rows.positions, at)) if isinstance(at, int) else done
        if bad > done:
            before = replace(rows.select(slice(done, bad)), problem=None)
            yield from kernels.decode_in_steps(data, table=before)
        raise
