"""The Unix socket of a node: a file in its log directory, by which commands on the same machine find it.

Only the process that holds the lock of the directory makes the file. Order of effects of a node:

| step | a command that comes then |
|---|---|
| 1. the lock of the directory is taken | finds no socket, or a dead one, and reports the lock |
| 2. the socket listens under a temporary name, and is renamed | connects and waits for its first response |
| 3. the logs are loaded, requests are answered | is answered |
| 4. the end: connections are closed, no request is answered any more | connects and waits |
| 5. the logs are closed, the lock is released | the same |
| 6. the file is removed and the socket closed | its connection ends without a response, and it looks again |

A node that was killed leaves the file. Connecting to it is refused, and the next node replaces it.

The file has mode 0600. Both ends check the user of the other process: a node accepts its own user and root, a command
accepts a node of its own user, of root, or of the owner of the directory. A path may be longer than the 107 bytes of a
socket's address: it is then named through a descriptor of its directory in ``/proc/self/fd``.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec

from local.errors import AccessDenied, DiskFailed, LogError

FILE = "tiered.sock"
BACKLOG = 128
_ADDRESS_BYTES_MAX = 107
_CREDENTIALS = struct.Struct("3i")  # process id, user id, group id; see unix(7), SO_PEERCRED
_log = logging.getLogger(__name__)
_NO_NODE = (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR)


class NodeSocket:
    """The socket of a node: listening from `publish` until `close`."""

    def __init__(self, directories: Sequence[str]) -> None:
        """The file will be in the first of the log directories that allows it. Without kio there is none."""
        self._directories = directories
        self._path = ""
        self._identity = 0, 0
        self._is_closed = find_spec("kio") is None
        self.listener: socket.socket | None = None

    def publish(self) -> None:
        """Listen, unless it does. The caller holds the lock of the directories. An error is only logged."""
        if self._is_closed or self.listener is not None:
            return
        errors = []
        for directory in self._directories:
            try:
                self._listen(os.path.join(directory, FILE))
            except LogError as error:
                errors.append(error)
            else:
                return
        self._is_closed = True
        _log.warning("commands cannot use this node while it runs: error=%s", errors[0])

    def close(self) -> None:
        """Remove the file, unless another node replaced it, and end the connections that were not accepted."""
        self._is_closed = True
        if self.listener is None:
            return
        with suppress(OSError):
            facts = os.stat(self._path)
            if (facts.st_dev, facts.st_ino) == self._identity:
                os.unlink(self._path)
        self.listener.close()

    def _listen(self, path: str) -> None:
        temporary, listener = f"{path}.{os.getpid()}.tmp", socket.socket(socket.AF_UNIX)
        try:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            with _address(temporary) as address:
                listener.bind(address)
            os.chmod(temporary, 0o600)  # before the next call nothing can connect
            listener.listen(BACKLOG)
            facts = os.stat(temporary)
            os.rename(temporary, path)
        except OSError as error:
            listener.close()
            with suppress(OSError):
                os.unlink(temporary)
            raise _failed("cannot listen for commands", path, error) from None
        self.listener, self._path, self._identity = listener, path, (facts.st_dev, facts.st_ino)


def connect(directory: str, timeout_s: float) -> socket.socket | None:
    """Connect to the node of a directory; None without a node. Raises AccessDenied for another user, DiskFailed."""
    path = os.path.join(directory, FILE)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(timeout_s)
        with _address(path) as address:
            connection.connect(address)
        owner = os.stat(directory).st_uid
        user = peer_user(connection)
        if user not in (0, os.geteuid(), owner):
            raise AccessDenied("cannot use the socket of the node, it belongs to another user", path=path, user=user)
    except OSError as error:
        connection.close()
        if error.errno in _NO_NODE:
            return None
        raise _failed("cannot connect to the running node", path, error) from None
    except BaseException:
        connection.close()
        raise
    return connection


def peer_user(connection: socket.socket) -> int:
    """The user id of the process at the other end."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(found)[1])


def is_admitted(user: int) -> bool:
    """Whether a node of this process serves a process of that user."""
    return user in (0, os.geteuid())


@contextmanager
def _address(path: str) -> Iterator[str]:
    """The path as an address of a socket, valid within the block."""
    if len(os.fsencode(path)) <= _ADDRESS_BYTES_MAX:
        yield path
        return
    directory, name = os.path.split(path)
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{name}"
    finally:
        os.close(fd)


def _failed(attempt: str, path: str, error: OSError) -> LogError:
    cause = errno.errorcode.get(error.errno or 0, "unknown").lower()
    kind = AccessDenied if error.errno in (errno.EACCES, errno.EPERM) else DiskFailed
    return kind(attempt, path=path, cause=cause)
