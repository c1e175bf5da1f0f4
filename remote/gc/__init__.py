"""Garbage collection (GC) of the bucket. Start with `delayed_delete`.

Every deletion of objects passes `object_deletion.delete_objects` with a `DeleteReason`; only a probe removes its own.
"""
