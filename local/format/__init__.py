"""Kafka's record format, except for the hot loops. Start with `batch_header` and `columns`."""
