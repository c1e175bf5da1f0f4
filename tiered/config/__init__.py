"""Settings: names, defaults, layers, units, secrets.

`properties` has the one table of properties and parses values. `config` layers ``tiered.toml``, the environment and the
command line, and converts the result to typed settings.
"""
