"""Data objects: the stored form of one closed segment.

`segment_upload` copies a segment, `chunk_table` locates its chunks, `object_encoding` and `encryption` encode them,
`index_bundle` holds the indexes in one object. Start with `segment_upload`.
"""
