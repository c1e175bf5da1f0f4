"""Sample deployments for the pages: a manager, its endpoint on loopback, and a fixed clock."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from group_samples import commit
from manager_world import COMPACTED, DAY, NOW, TIERED, SwitchableStore, World, send

from local.errors import Corrupt, Unavailable
from local.format.record import Record
from local.names import TopicPartition
from local.storage import replace_file
from tiered.manager.manager import LogManager
from tiered.serve.security.addresses import LOOPBACK
from tiered.service.worker import Worker
from tiered.status.tier_history import FILE, TierPoint, TierSeries
from tiered.web.http.server import MetricsServer
from tiered.web.http.serving import EXCHANGE_S
from tiered.web.pages.site import Site

MINUTE = 60_000
PARTITIONS, TOPICS, SEGMENTS = 850, 150, 10_000  # a thousand partitions in total
LIMIT_S = 60.0  # time limit of a read on a busy machine; no test waits for it
EVIL = "<img src=x onerror=\"window.hit = 1\"><script>window.hit = 1</script> & 'quoted'"


class Scene:
    """A manager whose pages are served. `now_ms` is the time used by the pages."""

    def __init__(self, world: World | None = None, store: object | None = None, **settings: str) -> None:
        self.world = world or World()
        self.now_ms = NOW
        self.manager: LogManager = self.world.open(store=store, **settings)  # type: ignore[arg-type]
        self.worker = Worker(self.manager, now_ms=NOW, interval_ms=30_000)
        self.site = Site(self.manager, lambda: self.now_ms, storage=self.world.disk, deadline_s=LIMIT_S)
        self._server: MetricsServer | None = None
        self._port = 0
        self.at_end: Callable[[], None] = lambda: None  # called before the manager is closed

    @property
    def root(self) -> str:
        return f"http://{LOOPBACK}:{self._port}"

    def __enter__(self) -> Scene:
        self.serve()
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()
        self.at_end()
        self.manager.close()

    def serve(self) -> None:
        """Start the server, at its former address if it was served before."""
        self._server = MetricsServer(
            LOOPBACK, self._port, {}, lambda target: self.site.answer(target), answer_s=EXCHANGE_S
        )
        self._server.start()
        self._port = self._server.address[1]

    def hang_up(self) -> None:
        """Stop the server: new requests are refused."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def settle(self) -> None:
        while self.worker.round(self.now_ms):
            pass


class HangingStore(SwitchableStore):
    """A store whose calls block while it is down, until `give_up`."""

    def __init__(self, inner: object) -> None:
        super().__init__(inner, is_down=False)  # type: ignore[arg-type]
        self.reached, self.goes_on = threading.Event(), threading.Event()

    def __getattr__(self, verb: str) -> Callable[..., object]:
        call = super().__getattr__(verb)

        def hanging(*given: object, **more: object) -> object:
            if self.is_down:
                self.reached.set()
                self.goes_on.wait()
            return call(*given, **more)

        return hanging

    def give_up(self) -> None:
        """Answer all blocked calls."""
        self.is_down = False
        self.goes_on.set()


def empty() -> Scene:
    """A deployment without topics."""
    return Scene()


def busy() -> Scene:
    """A topic in both tiers, a compacted topic, a local-only topic, and one corrupt partition."""
    scene = Scene()
    manager = scene.manager
    manager.topics.create("orders", 3, {**TIERED, "retention.ms": "30d"}, now_ms=NOW)
    manager.topics.create("clicks", 1, COMPACTED, now_ms=NOW)
    manager.topics.create(
        "a.topic_with-a_name_that_is_long_enough_to_be_in_the_way_of_everything_beside_it", 1, {}, now_ms=NOW
    )
    send(manager, 400, topic="orders")
    send(manager, 400, topic="clicks")
    scene.settle()
    send(manager, 60, topic="orders", start=400)
    manager.partitions.problems = {
        TopicPartition("orders", 2): Corrupt("cannot read a batch, checksum differs", segment="00000000000000000000")
    }
    scene.now_ms = NOW + 10_000
    return scene


def aged() -> Scene:
    """History notes of three years with gaps, one hour of them without a bucket, and two consumer groups."""
    scene = busy()
    day, series = 86_400_000, TierSeries()
    days = [NOW - at * day for at in range(1090, 31, -1) if not 200 < at < 230]
    hours = [NOW - at * 3_600_000 for at in range(31 * 24, 49, -1)]
    minutes = [NOW - at * 5 * MINUTE for at in range(570, -1, -1) if not 150 < at < 230]
    for at in [*days, *hours, *minutes]:
        age = (NOW - at) / day
        local = int((60 + 25 * math.sin(age * 2 * math.pi)) * (1 << 30))
        remote = int((1090 - age) ** 1.2 * (2 << 30))
        is_seen = not 60 < (NOW - at) / MINUTE < 120
        point = TierPoint(
            at_ms=at,
            local_bytes=local,
            remote_bytes=remote if is_seen else None,
            lag_bytes=local // 12 if is_seen else None,
            at_risk_bytes=local // 5 if is_seen else None,
            dollars_per_month=remote / (1 << 30) * 0.023 if is_seen else None,
            missing_partitions=int(not is_seen),
        )
        series.add(point, {"orders": point})
    replace_file(scene.world.disk, f"./data/{FILE}", series.encoded())
    commit(scene.manager, "billing", {TopicPartition("orders", 0): 80, TopicPartition("orders", 1): 0})
    commit(scene.manager, "a.group-of-a-deleted-topic", {TopicPartition("deleted", 0): 7})
    return scene


def evil() -> Scene:
    """Messages and a group that are HTML, which no topic name can be."""
    scene = Scene()
    scene.manager.topics.create("t", 1, {}, now_ms=NOW)
    commit(scene.manager, EVIL, {TopicPartition("t", 0): 0})
    scene.manager.partitions.problems = {TopicPartition("t", 0): Corrupt(EVIL)}
    return scene


def huge() -> Scene:
    """A thousand partitions, one of them with ten thousand segments, each with a problem like without a bucket."""
    scene = Scene()
    manager = scene.manager
    wide = {"segment.bytes": "1024", "remote.storage.enable": "true"}
    manager.topics.create("huge", PARTITIONS, wide, now_ms=NOW)
    for number in range(SEGMENTS):
        manager.append("huge", [Record(b"k", b"v" * 940, NOW - DAY + number)], 0, now_ms=NOW)
    for number in range(TOPICS):
        manager.topics.create(f"topic-{number:03}", 1, {"cleanup.policy": "compact"}, now_ms=NOW)
    manager.partitions.problems = {name: Unavailable("the store is down", partition=name) for name in names(manager)}
    return scene


def names(manager: LogManager) -> list[TopicPartition]:
    return [name for topic in manager.topics.all() for name in topic.partitions()]


def refusing() -> Scene:
    """Ten minutes after the bucket became unreachable: every upload since then was refused."""
    world = World()
    store = SwitchableStore(world.store, is_down=False)
    scene = _with_a_backlog(world, store)
    for at in range(1, 12):
        scene.worker.round(NOW + at * MINUTE)
    scene.now_ms = NOW + 11 * MINUTE
    return scene


def hanging() -> Scene:
    """44 minutes after the bucket stopped to answer: an upload has waited for it since then."""
    world = World()
    store = HangingStore(world.store)
    scene = _with_a_backlog(world, store)
    scene.at_end = store.give_up
    scene.worker.waits = False  # like in the daemon: work that waits for the store has its own threads
    for at in range(1, 45):
        scene.worker.round(NOW + at * MINUTE)
    assert store.reached.wait(30)
    scene.now_ms = NOW + 44 * MINUTE
    return scene


def _with_a_backlog(world: World, store: SwitchableStore) -> Scene:
    """A hundred records were appended after the store failed. Earlier records are in both tiers."""
    scene = Scene(world, store)
    scene.manager.topics.create("t", 1, TIERED, now_ms=NOW)
    send(scene.manager, 200, topic="t")
    scene.settle()
    send(scene.manager, 100, topic="t", start=200)
    store.is_down = True
    return scene
