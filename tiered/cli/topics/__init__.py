"""Commands for topics and their settings.

topic, config, placement, compact, compaction, view, pause and resume.
"""
