"""Garbage collection (GC) of the bucket. Start with `delayed_delete`.

Readers' pins and references of forks protect objects from deletion. Modules that delete objects in a store:

| module | deletes |
|---|---|
| `remote.gc.delayed_delete` | pending deletes after their grace period, by `fork_references.delete_objects` |
| `remote.gc.page_removal` | manifest pages and the objects of their entries |
| `remote.gc.old_manifests` | manifests below the GC boundary |
| `remote.gc.partition_removal` | all objects of a deleted partition, by `fork_references.delete_objects` |
| `remote.gc.fork_references` | the objects that it is given, without those that a fork names |
| `remote.gc.pins` | ended and released pins |
| `tiered.jobs.orphan_collection` | orphans |
| `remote.segments.segment_upload` | the objects of its own failed upload |
| `tiered.maintenance.upload_and_commit` | the objects of its own upload whose commit was refused |
| `tiered.jobs.compaction_passes`, `tiered.jobs.ingest_task` | the objects of their own interrupted work |
| `tiered.views.view_building` | the parts of a view that was not completed |
| `tiered.spark.jobs.exporting` | its own incomplete Parquet files in the target |
| `tiered.stores.store_clock`, `tiered.health.doctor_store`, `tiered.bench.benchmark` | their own probe objects |

Wrappers in `remote.store` and `remote.manifest.sealing` pass deletions on.
"""
