"""The stored form of one closed segment. Start with `stored_segment`."""
