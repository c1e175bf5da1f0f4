"""Kafka clients in Go and Rust: built once from `franz_go` and `rskafka`, into the user's cache folder.

A changed source is built again. Run as a program, it builds both, so that no test waits for a compiler.
"""

from __future__ import annotations

import shutil
import sys
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "localstack"))
from fetched import Missing, go_command, once, run

GO, RUST = Path(__file__).with_name("franz_go"), Path(__file__).with_name("rskafka")


def franz_go_client() -> Path:
    """The program of ``franz_go/main.go``. Raises Missing."""
    return once(f"franz-go-{_checksum(GO)}", _build_go) / "client"


def rskafka_client() -> Path:
    """The program of ``rskafka/src/main.rs``. Raises Missing."""
    return once(f"rskafka-{_checksum(RUST)}", _build_rust) / "client"


def _checksum(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return f"{zlib.crc32(b''.join(path.read_bytes() for path in files)):08x}"


def _build_go(folder: Path) -> None:
    words = [go_command(), "build", "-mod=readonly", "-o", str(folder / "client"), "."]
    run(words, "building the client by franz-go", {"CGO_ENABLED": "0"}, where=str(GO))


def _build_rust(folder: Path) -> None:
    cargo = shutil.which("cargo")
    if cargo is None:
        raise Missing("there is no cargo to build the client by rskafka")
    sources, built = folder / "sources", folder / "target"
    shutil.copytree(RUST, sources)  # cargo writes a lock file there
    run([cargo, "build", "--quiet", "--target-dir", str(built)], "building the client by rskafka", where=str(sources))
    shutil.move(built / "debug" / "client", folder / "client")
    shutil.rmtree(built)
    shutil.rmtree(sources)


if __name__ == "__main__":
    for build in (franz_go_client, rskafka_client):
        try:
            build()
        except Missing as missing:
            sys.exit(str(missing))
