"""Garbage collection (GC): every deletion of objects in the bucket.

It deletes pending deletes after their grace period, orphans, manifest pages, old manifests and deleted partitions.
Readers' pins and references of forks protect objects from deletion. Start with `delayed_delete`.
"""
