"""Settings: names, defaults, layers, units, secrets.

`property_table` lists every property, and `properties` parses them. `config` layers ``tiered.toml``, the environment
and the command line. `resolve_settings` converts them to typed settings.
"""
