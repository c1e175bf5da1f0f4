"""Commands for a bucket.

remote, restore, fork, import, adopt, gc, scrub, repair, rewrite, rotate-keys, compact in the bucket, pipeline,
backfill.
"""
