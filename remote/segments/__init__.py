"""Data objects: how one closed segment is stored.

`segment_upload` copies a segment, `chunk_table` says where its chunks lie, `object_encoding` and `encryption` say how
they are encoded, `index_bundle` holds the indexes in one object.
"""
