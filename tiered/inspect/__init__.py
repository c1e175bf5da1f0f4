"""Inspection of files and objects.

Dumps of batches, records, indexes and checkpoints, byte by byte or as rows; the usage of log directories; the segments
of a bucket as a table.
"""
