"""Uploads of closed segments. Start with `segment_upload`."""
