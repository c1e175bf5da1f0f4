"""Topics of a bucket as tables: Arrow batches without Spark. Start at `remote_tables.open_remote`.

| module | content |
|---|---|
| `remote_tables` | `open_remote` and `RemoteTables.scan` |
| `scan` | the selection of a scan, its threads and its memory |
"""
