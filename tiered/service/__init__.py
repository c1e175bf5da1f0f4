"""A manager as a long-running service: maintenance in a loop, relief of a full disk, log lines, systemd."""
