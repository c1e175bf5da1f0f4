"""The log directories of one node. Start with `log_dirs`: placement and offline detection."""
