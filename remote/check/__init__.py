"""Checks of a bucket's content for one partition."""
