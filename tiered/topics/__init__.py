"""Topics of a node: created, altered, deleted, and their settings exported."""
