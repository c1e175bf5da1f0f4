"""Move data into and out of the system: adopt a broker's directory, import, restore, fork."""
