"""Looking inside files and objects.

Dumps of batches, records, indexes and checkpoints, byte by byte or as rows; the usage of log directories; segments of
a bucket as a table.
"""
