"""Checks of log directories for internal consistency. Start with `directories`."""
