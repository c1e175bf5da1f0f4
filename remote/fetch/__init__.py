"""Reads of remote segments. Start with `range_reader`."""
