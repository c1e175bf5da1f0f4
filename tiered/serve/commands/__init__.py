"""How commands and a running node reach each other: the Unix socket, a client of the protocol, jobs for operations."""
