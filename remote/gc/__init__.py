"""Garbage collection (GC) of the bucket. Start with `delayed_delete`.

Every deletion passes `object_deletion.delete_objects` with a `DeleteReason`; only `remote.store.probe` does not.
"""
