"""Topics of a node: created, altered, deleted.

`topic_admin` alters and deletes topics, `topic_creation` creates them, `topic_dry_run` reports the
effects of a change. `config_export` writes the effective settings for another place.
"""
