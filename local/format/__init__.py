"""The bytes of Kafka's record format, without loops that must be fast.

Headers, varints, codecs and checksums of batches (magic 0, 1 and 2), and the columns that the kernels fill.
Start with `batch_header` and `columns`.
"""
