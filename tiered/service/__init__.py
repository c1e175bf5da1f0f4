"""A manager as a long-running service.

`worker` runs maintenance in a loop, `disk_pressure` frees a full disk, `problem_watch` logs the start and the end of
problems, `systemd` talks to the service manager.
"""
