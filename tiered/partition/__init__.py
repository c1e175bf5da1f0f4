"""One partition: its open, its state, its figures."""
