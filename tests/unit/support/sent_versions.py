"""The versions of requests that Kafka clients send to the endpoints of a test run, for docs/reference/kafka-clients.md.

    TIERED_SENT_VERSIONS=/tmp/sent .ci/with pytest --deep -m "kafka or server"
    .ci/with python tests/unit/support/sent_versions.py /tmp/sent

The second command prints each API with the versions by client. Endpoints in processes of their own are not watched. A
client has the name that it gives in ApiVersions (KIP-511), else its client id.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

VARIABLE = "TIERED_SENT_VERSIONS"
_NAMED_SINCE = 3  # ApiVersions


def watch(path: Path) -> None:
    """Append a line to the file for each new (client, API, version) of this process."""
    from tiered.serve import connection
    from tiered.serve.messages.base import Api
    from tiered.serve.protocol import Received, parse

    names: WeakKeyDictionary[object, str] = WeakKeyDictionary()
    seen = set[str]()
    answered = connection.Connection._answered

    async def watched(self: Any, frame: bytearray, proceed: Callable[[], None]) -> Any:
        if not self._session.takes_raw:
            received = parse(bytes(frame), self._service.apis)
            header = received.header
            is_named = header.api_key == Api.API_VERSIONS and header.api_version >= _NAMED_SINCE
            if isinstance(received, Received) and is_named:
                request: Any = received.request
                names[self] = f"{request.client_software_name} {request.client_software_version}"
            line = "\t".join((names.get(self, header.client_id or "-"), header.api_name, str(header.api_version)))
            if line not in seen:
                seen.add(line)
                with path.open("a") as file:
                    file.write(line + "\n")
        return await answered(self, frame, proceed)

    connection.Connection._answered = watched  # type: ignore[method-assign]


def table(lines: Iterable[str]) -> Iterable[str]:
    """A line for each API and client, with the versions that it sent."""
    found: dict[tuple[str, str], set[int]] = {}
    for line in lines:
        client, api, version = line.rstrip("\n").split("\t")
        found.setdefault((api, client), set()).add(int(version))
    for (api, client), versions in sorted(found.items()):
        yield f"{api:30} {client:40} {', '.join(map(str, sorted(versions)))}"


if __name__ == "__main__":
    print(*table(Path(sys.argv[1]).read_text().splitlines()), sep="\n")
