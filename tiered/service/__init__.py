"""A manager as a long-running service.

`worker` runs maintenance in a loop, frees a full disk, and logs the start and the end of problems. `systemd` talks to
the service manager.
"""
