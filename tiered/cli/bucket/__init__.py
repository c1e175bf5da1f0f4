"""Commands for a bucket, such as restore, import, gc, scrub, rewrite and pipeline."""
