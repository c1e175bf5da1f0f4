"""Topics of a bucket as tables: Arrow batches without Spark. Start at `remote_tables.open_remote`.

| module | content |
|---|---|
| `remote_tables` | `open_remote` and `RemoteTables.scan` |
| `exporting` | the job of an export: its files, its records, resumption; by Spark tasks or threads |
| `iceberg` | what is new in a topic as a snapshot of an Iceberg table |
| `parquet_export` | Parquet files by topic and day, in threads |
| `scan` | the selection of a scan, its threads and its memory |
"""
