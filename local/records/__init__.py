"""Records and batches as values.

`batch` encodes and checks whole batches. `batch_runs` reads all batches of a file. `record_columns` holds records to
append as columns. `isolation` hides the records of open and aborted transactions.
"""

from local.format.record import Record as Record
from local.format.record import StoredRecord as StoredRecord
from local.format.record import TimestampType as TimestampType
