"""Settings: names, defaults, layers, units, secrets.

`property_table` lists every property, `properties` parses them, `config` layers ``tiered.toml``, the environment and
the command line, `topic_settings` makes typed settings of them.
"""
