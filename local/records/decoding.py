"""Records of batches of which one may be damaged: all that lies before the damage is given before the error."""

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
    """As `kernels.decode_in_steps`, which checks many batches before it gives the first of them.

    The batches before the damaged one are given, then Corrupt is raised with the ``at`` of that batch.
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
