"""Wrappers around any object store; each obeys `remote.store.protocol`."""
