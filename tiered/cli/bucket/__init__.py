"""Commands for a bucket."""
