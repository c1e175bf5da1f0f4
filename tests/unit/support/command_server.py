"""``tiered`` and ``python`` for a shell at the cost of a fork: one process has imported all modules and forks per
command.

`Commands` is that process and a directory with the two programs. These are small scripts that pass on their words,
streams, directory, environment and signals, and wait for the exit code. A command behaves like ``python -m tiered``
without half a second of imports.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType

_CLIENT = """\
#!{python} -SEs
import json, os, signal, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({path!r})
told = [{program!r}, sys.argv[1:], os.getcwd(), dict(os.environ)]
socket.send_fds(server, [json.dumps(told).encode() + b"\\0"], [0, 1, 2])
answers = server.makefile("r")
pid = int(answers.readline())
for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(name, lambda number, frame: os.kill(pid, number))
sys.exit(int(answers.readline()))
"""
_HEAVY = (
    "numpy",
    "pandas",
    "pyarrow.parquet",
    "s3fs",
    "boto3",
    "obstore.fsspec",
    "cryptography.fernet",
    "tiered.manager.manager",
)


class Commands:
    """The process and the directory, as a context manager. `directory` belongs in front of PATH."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._path = str(directory / "s")
        self._server: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Commands:
        for program in ("tiered", "python"):
            script = self.directory / program
            script.write_text(_CLIENT.format(python=sys.executable, path=self._path, program=program))
            script.chmod(0o755)
        self._server = subprocess.Popen(
            [sys.executable, __file__, self._path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == b"ready\n"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        assert self._server is not None
        # including processes of a failed test, which would hold the pipe open
        os.killpg(self._server.pid, signal.SIGKILL)
        self._server.communicate()


def serve(path: str) -> None:
    """Fork for every client, until killed."""
    from importlib import import_module

    from tiered.cli.main import COMMANDS

    for module in (*_HEAVY, *(f"tiered.cli.{module}" for module, _ in COMMANDS.values())):
        import_module(module)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen(64)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    while True:
        client, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            _attend(client)
        client.close()


def _attend(client: socket.socket) -> None:
    """In a child of the server: fork again, send the client the process id of the fork and then its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    told, streams, _, _ = socket.recv_fds(client, 1 << 20, 3)
    while not told.endswith(b"\0"):
        told += client.recv(1 << 20)
    if (pid := os.fork()) == 0:
        client.close()
        program, words, directory, environment = json.loads(told[:-1])
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(environment)
        _become(program, words)
    client.sendall(b"%d\n" % pid)
    _, status = os.waitpid(pid, 0)
    client.sendall(b"%d\n" % (os.waitstatus_to_exitcode(status) % 256))
    os._exit(0)


def _become(program: str, words: list[str]) -> None:
    """Run the command to its end. Never returns."""
    sys.stdin, sys.stdout, sys.stderr = (open(number, mode, closefd=False) for number, mode in enumerate("rww"))  # noqa: SIM115
    code = 1
    try:
        if program == "tiered":
            from tiered.cli.main import run

            run(words)
        elif words[0] == "-c":
            sys.argv = ["-c", *words[2:]]
            exec(compile(words[1], "page", "exec"), {"__name__": "__main__"})
            code = 0
        else:
            os.execv(sys.executable, [sys.executable, *words])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - a fork must not return into the server
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))
    serve(sys.argv[1])
