"""Records and batches as values.

`batch` makes and checks whole batches, `batch_runs` walks a file, `record_columns` holds records to append as
columns, `isolation` hides records of open and aborted transactions.
"""

from local.format.record import (
    Record,
    StoredRecord,
    TimestampType,
)

__all__ = [
    "Record",
    "StoredRecord",
    "TimestampType",
]
