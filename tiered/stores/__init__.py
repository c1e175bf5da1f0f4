"""The object store as the configuration describes it.

Options, key rings, the meter whose counts survive a restart, checks before the first write, and the object encoding
of new data objects. Start with `configured_store`.
"""
