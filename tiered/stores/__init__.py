"""The configured object store.

Options, key rings, a meter with persistent counts, checks before the first write, and the object encoding of new data
objects. Start with `configured_store`.
"""
