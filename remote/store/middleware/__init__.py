"""Wrappers around any object store.

Retries, deadlines, counts, limits in bytes per second, observation, and a store that never overwrites. Each wrapper
obeys the protocol of `remote.store.protocol`.
"""
