"""`LogManager`: every topic of one directory, both tiers, one process; its appends."""
