"""Commands for topics and their settings: topic, pause, resume, compact, compaction, view, cost."""
