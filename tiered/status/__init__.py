"""Status of a node and its tiers: figures, problems, history, agreement of disk and bucket."""
