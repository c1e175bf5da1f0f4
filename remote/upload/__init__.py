"""Uploads of closed segments. Start with `segment_upload`.

`segment_upload` copies one segment into the store and verifies it, `segment_upload_stream` reads, inspects and encodes
its bytes.
"""
