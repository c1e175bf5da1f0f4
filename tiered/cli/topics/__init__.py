"""Commands for topics and their settings.

topic, pause and resume, config, placement, compact, compaction, view, cost.
"""
