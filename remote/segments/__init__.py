"""The stored form of one closed segment. Start with `index_bundle`.

`chunk_table` locates the chunks of a data object, `object_encoding` and `encryption` encode them, `index_bundle` holds
the indexes in one object.
"""
