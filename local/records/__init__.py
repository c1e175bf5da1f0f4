"""Records and batches as values. Start with `batch`; `batch_runs` reads all batches of a file."""

from local.format.record import Record as Record
from local.format.record import StoredRecord as StoredRecord
from local.format.record import TimestampType as TimestampType
