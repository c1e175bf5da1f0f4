"""Manifests: the whole remote tier of a partition at one commit. Start with `commit_protocol`."""
