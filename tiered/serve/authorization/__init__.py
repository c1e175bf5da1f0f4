"""What a caller may do with each API, in front of the handlers. Start with `rules`."""
