"""Garbage collection (GC) of the bucket. Start with `delayed_delete`.

Every deletion of objects passes `object_deletion.delete_objects`, which takes a reason and checks its precondition:

| module | reason | deletes |
|---|---|---|
| `remote.gc.delayed_delete` | PENDING_DELETE, PENDING_PAGE, OLD_MANIFEST, PIN | pending deletes, old manifests, pins |
| `remote.gc.partition_removal` | PENDING_DELETE, PENDING_PAGE | all objects of a deleted partition |
| `remote.gc.fork_references` | as its caller | the objects that it is given, without those that a fork names |
| `remote.gc.pins` | PIN | released pins |
| `tiered.jobs.orphan_deletion` | ORPHAN | orphans |
| `remote.upload.segment_upload` | OWN_UPLOAD | the objects of its own failed upload |
| `tiered.maintenance.upload_and_commit` | OWN_UPLOAD | the objects of its own upload whose commit was refused |
| `tiered.jobs.compaction_passes`, `tiered.jobs.ingest_task` | OWN_UPLOAD | the objects of their interrupted work |
| `tiered.maintenance.view_building` | OWN_UPLOAD | the parts of a view that was not completed |
| `tiered.tables.exporting` | EXPORT | its own incomplete Parquet files in the target |
| `tiered.stores.configured_store`, `tiered.health.doctor` | PROBE | their own probe objects |
| `tiered.bench.benchmark` | BENCHMARK | all objects of its own prefix |

The stores in `remote.store` carry the deletion out; `remote.store.probe` removes its own probe.
"""
