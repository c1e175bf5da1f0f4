"""One partition: its open, its state, its appends, its figures."""
