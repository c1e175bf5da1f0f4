"""One segment of a log: a ``.log`` file with its indexes. Start with `segment`."""
