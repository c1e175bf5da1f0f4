"""Settings: names, defaults, layers, units, secrets. Start with `config` and the table in `properties`."""
