"""Records and batches as values.

`batch` encodes and checks whole batches. `batch_runs` reads all batches of a file. `record_columns` holds records to
append as columns. `isolation` hides the records of open and aborted transactions.
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
