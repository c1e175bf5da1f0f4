"""The stored form of one closed segment. Start with `index_bundle`.

`index_bundle` holds the indexes and the chunk table in one object, `object_encoding` and `encryption` encode the
chunks.
"""
