"""Topics of a node: created, altered, deleted.

`topic_admin` composes the changes of topics. `topic_creation` and `topic_deletion` act, `topic_dry_run` reports the
effects of a change. `config_export` writes the effective settings for another place.
"""
