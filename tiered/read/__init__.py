"""One stream of records over both tiers.

`reader` reads a partition from any retained offset, `bucket_reader` reads a bucket with nothing else.
`external_partition` reads external layouts, `view_reader` compacted views.
"""
