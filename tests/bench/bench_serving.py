"""Cost of the metrics and pages server for a daemon: ``bench_serving.py``, half a minute.

Processor time and resident memory of a new process with the modules of a running manager: the import of the server,
its start with the first answer, a scrape over a new connection, another over the same, and a second without requests.
Wall time is not measured.
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import socket
import sys
import time
from http import HTTPStatus

import tiered.maintenance.maintenance
import tiered.manager.manager
import tiered.observe.metrics
import tiered.service.worker
import tiered.web.pages.site

LOADED = (
    asyncio,
    json,
    logging,
    tiered.maintenance.maintenance,
    tiered.manager.manager,
    tiered.observe.metrics,
    tiered.service.worker,
    tiered.web.pages.site,
)
REQUEST = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n%s\r\n"
COUNT, IDLE_S = 500, 20


def cpu_ms() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * 1000


def resident_mb() -> float:
    with open("/proc/self/status") as file:
        return int(next(line for line in file if line.startswith("VmRSS")).split()[1]) / 1024


def main() -> None:
    cpu, memory, modules = cpu_ms(), resident_mb(), len(sys.modules)
    from tiered.serve.security.addresses import LOOPBACK
    from tiered.web.http.server import MetricsServer

    print(f"import: {cpu_ms() - cpu:.0f} ms {resident_mb() - memory:.1f} MB {len(sys.modules) - modules} modules")
    cpu, memory = cpu_ms(), resident_mb()
    text = "".join(f'tiered_local_log_bytes{{topic="{number}"}} 1\n' for number in range(100))
    server = MetricsServer(LOOPBACK, 0, {"/metrics": lambda accept: (HTTPStatus.OK, "text/plain", text)})
    server.start()
    scrape(server.address)
    print(f"start and first answer: {cpu_ms() - cpu:.0f} ms {resident_mb() - memory:.1f} MB")
    cpu = cpu_ms()
    for _ in range(COUNT):
        scrape(server.address)
    print(f"a scrape over a new connection: {(cpu_ms() - cpu) / COUNT:.2f} ms")
    cpu = cpu_ms()
    with socket.create_connection(server.address) as client:
        for _ in range(COUNT):
            client.sendall(REQUEST % b"")
            read = b""
            while not read.endswith(text.encode()):
                read += client.recv(65536)
    print(f"one more over the same connection: {(cpu_ms() - cpu) / COUNT:.2f} ms")
    cpu = cpu_ms()
    time.sleep(IDLE_S)
    print(f"a second in which nobody asks: {(cpu_ms() - cpu) / IDLE_S:.2f} ms")
    server.close()


def scrape(address: tuple[str, int]) -> None:
    with socket.create_connection(address) as client:
        client.sendall(REQUEST % b"Connection: close\r\n")
        while client.recv(65536):
            pass


if __name__ == "__main__":
    main()
