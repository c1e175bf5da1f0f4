"""The stored form of one closed segment. Start with `index_bundle`."""
