"""Changes of a running node: what the manager checks becomes Kafka's error, and what it does is durable."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from uuid import UUID

import pytest
from disk_model import ModelDisk
from manager_world import COMPACTED, NAME, NOW, TIERED, SwitchableStore, World, send

from local.errors import Diverged, LogError, NotFound, OffsetOutOfRange, Unavailable
from local.names import TopicPartition
from tiered.config.config import Config
from tiered.config.properties import PROPERTIES
from tiered.manager.manager import LogManager
from tiered.serve.admin import Change, ConfigEntry, ConfigSource, ConfigType, CreatedTopic, NewTopic, Operation, Refused
from tiered.serve.admin.config_entries import FIXED_OF_TOPICS, TopicEntries, node_entries, type_of
from tiered.serve.messages.base import Error
from tiered.serve.node.node_admin import NodeAdmin
from tiered.serve.record_source import uuid_of

SET, DELETE, APPEND, SUBTRACT = Operation
CRASHES = 3  # states of the disk after each effect


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def manager(world: World) -> Iterator[LogManager]:
    with world.open() as manager:
        yield manager


@pytest.fixture
def admin(manager: LogManager) -> NodeAdmin:
    return admin_of(manager)


def admin_of(manager: LogManager) -> NodeAdmin:
    return NodeAdmin(manager, 3, lambda: NOW)


def create(admin: NodeAdmin, name: str, partitions: int = 1, **settings: str) -> CreatedTopic:
    named = {key.replace("_", "."): value for key, value in settings.items()}
    new = NewTopic(name=name, partitions=partitions, settings=named)
    (created,) = admin.create_topics([new], validate_only=False)
    assert isinstance(created, CreatedTopic), created
    return created


def refused(call: Callable[[], object]) -> Refused:
    with pytest.raises(Refused) as found:
        call()
    return found.value


def alter(
    admin: NodeAdmin, *changes: tuple[str, Operation, str | None], is_dry: bool = False, topic: str = "t"
) -> None:
    admin.alter_topic(
        topic, [Change(name=name, operation=verb, value=value) for name, verb, value in changes], validate_only=is_dry
    )


def own(manager: LogManager, topic: str = "t") -> dict[str, str]:
    return dict(manager.topics.get(topic).properties)


def test_created_topics_are_those_of_the_manager_and_take_records(manager: LogManager, admin: NodeAdmin) -> None:
    new = [NewTopic(name="a"), NewTopic(name="b", partitions=3, settings={"retention.ms": "7d"})]
    first, second = admin.create_topics(new, validate_only=False)
    assert isinstance(first, CreatedTopic)
    assert isinstance(second, CreatedTopic)
    assert (first.partition_count, second.partition_count) == (1, 3)
    assert second.topic_id == uuid_of(manager.topics.get("b").topic_id)
    entry = {each.name: each for each in second.settings}["retention.ms"]
    assert (entry.value, entry.source) == ("604800000", ConfigSource.TOPIC), "numbers are bare, as Kafka's"
    send(manager, 10, topic="b")


def test_each_refused_topic_has_its_error_and_the_others_are_created(manager: LogManager, admin: NodeAdmin) -> None:
    create(admin, "there")
    cases = {
        "there": ({}, 1, Error.TOPIC_ALREADY_EXISTS),
        "unknown": ({"retenton.ms": "1"}, 1, Error.INVALID_CONFIG),
        "value": ({"retention.ms": "x"}, 1, Error.INVALID_CONFIG),
        "both": (
            {"local.retention.ms": "9", "retention.ms": "5", "remote.storage.enable": "true"},
            1,
            Error.INVALID_CONFIG,
        ),
        "manager": ({"log.cleaner.threads": "1"}, 1, Error.INVALID_CONFIG),
        "broker": ({"log.retention.ms": "1"}, 1, Error.INVALID_CONFIG),
        "replicas": ({"min.insync.replicas": "2"}, 1, Error.INVALID_CONFIG),
        "empty": ({"retention.ms": ""}, 1, Error.INVALID_CONFIG),
        "many": ({}, 10_001, Error.INVALID_PARTITIONS),
    }
    new = [NewTopic(name=name, settings=each, partitions=count) for name, (each, count, _) in cases.items()]
    *wrong, fine = admin.create_topics([*new, NewTopic(name="fine")], validate_only=False)
    for each, (name, (_, _, error)) in zip(wrong, cases.items(), strict=True):
        assert isinstance(each, Refused), name
        assert (each.error, bool(each.message)) == (error, True), name
    assert isinstance(fine, CreatedTopic)
    assert [each.name for each in manager.topics.all()] == ["fine", "there"]
    found = wrong[1]
    assert isinstance(found, Refused)
    assert "did_you_mean=retention.ms" in (found.message or "")


def test_settings_of_kafka_with_one_possible_value_are_accepted_with_it(manager: LogManager, admin: NodeAdmin) -> None:
    create(admin, "t", **{name: each.value for name, each in FIXED_OF_TOPICS.items()})
    assert own(manager) == {}
    alter(admin, ("min.insync.replicas", SET, "1"), ("preallocate", DELETE, None))
    wrong = refused(lambda: alter(admin, ("unclean.leader.election.enable", SET, "true")))
    assert (wrong.error, "only replica" in (wrong.message or "")) == (Error.INVALID_CONFIG, True)


def test_validation_writes_nothing_and_finds_the_same_errors(
    world: World, manager: LogManager, admin: NodeAdmin
) -> None:
    create(admin, "t", 2)
    before = len(world.disk.journal)
    new = [NewTopic(name="v", settings=TIERED), NewTopic(name="t"), NewTopic(name="w", settings={"nope": "1"})]
    planned, *wrong = admin.create_topics(new, validate_only=True)
    assert isinstance(planned, CreatedTopic)
    assert (planned.topic_id, planned.partition_count) == (None, 1)
    assert [each.error for each in wrong if isinstance(each, Refused)] == [
        Error.TOPIC_ALREADY_EXISTS,
        Error.INVALID_CONFIG,
    ]
    admin.add_partitions("t", 5, validate_only=True)
    alter(admin, ("retention.ms", SET, "5"), is_dry=True)
    admin.replace_settings("t", {"retention.ms": "5"}, validate_only=True)
    assert refused(lambda: admin.add_partitions("t", 2, validate_only=True)).error == Error.INVALID_PARTITIONS
    assert refused(lambda: alter(admin, ("retention.ms", SET, "x"), is_dry=True)).error == Error.INVALID_CONFIG
    assert len(world.disk.journal) == before
    assert manager.topics.get("t").partition_count == 2


def test_a_registered_topic_exists_though_the_bucket_did_not_reply(world: World) -> None:
    """As in Kafka: maintenance makes its partitions usable."""

    class DownAtCommit(SwitchableStore):
        def __getattr__(self, verb: str) -> Callable[..., object]:
            self.is_down = self.is_down or verb == "put_if_absent"
            return super().__getattr__(verb)

    store = DownAtCommit(world.store, is_down=False)
    with world.open(store=store) as manager:
        admin = admin_of(manager)
        store.is_down = False
        (created,) = admin.create_topics([NewTopic(name="t", settings=TIERED)], validate_only=False)
        assert isinstance(created, CreatedTopic)
        (late,) = admin.create_topics([NewTopic(name="u", settings=TIERED)], validate_only=False)
        assert isinstance(late, Unavailable), "the check before the registration needs the bucket"
        assert [each.name for each in manager.topics.all()] == ["t"]
        store.is_down = False


def test_topics_are_deleted_by_name_if_the_id_is_theirs(manager: LogManager, admin: NodeAdmin) -> None:
    topic_id = create(admin, "t").topic_id
    assert refused(lambda: admin.delete_topic("t", UUID(int=1))).error == Error.UNKNOWN_TOPIC_ID
    assert admin.delete_topic("t", topic_id) == topic_id
    with pytest.raises(NotFound):
        admin.delete_topic("t", None)
    assert manager.topics.all() == []


def test_a_diverged_log_is_not_deleted(world: World, manager: LogManager, admin: NodeAdmin) -> None:
    create(admin, "t", **TIERED)
    send(manager, 10)
    manager.partitions.find(NAME).tier.stop(Diverged("only this disk holds its records"))
    with pytest.raises(Diverged):
        admin.delete_topic("t", None)
    assert [each.name for each in manager.topics.all()] == ["t"]


def test_partitions_are_added(manager: LogManager, admin: NodeAdmin) -> None:
    create(admin, "t")
    admin.add_partitions("t", 3, validate_only=False)
    assert manager.topics.get("t").partition_count == 3
    assert refused(lambda: admin.add_partitions("t", 10_001, validate_only=False)).error == Error.INVALID_PARTITIONS
    with pytest.raises(NotFound):
        admin.add_partitions("nope", 3, validate_only=False)


@pytest.mark.parametrize(
    ("before", "changes", "after"),
    [
        ({}, [("retention.ms", SET, "5")], {"retention.ms": "5"}),
        ({"retention.ms": "5"}, [("retention.ms", DELETE, None)], {}),
        ({}, [("retention.ms", DELETE, None), ("nope", DELETE, None)], {}),
        ({}, [("cleanup.policy", APPEND, "compact")], {"cleanup.policy": "delete,compact"}),
        ({"cleanup.policy": "compact"}, [("cleanup.policy", APPEND, "compact")], {"cleanup.policy": "compact"}),
        ({"cleanup.policy": "compact"}, [("cleanup.policy", APPEND, "delete")], {"cleanup.policy": "compact,delete"}),
        ({"cleanup.policy": "compact,delete"}, [("cleanup.policy", SUBTRACT, "delete")], {"cleanup.policy": "compact"}),
        ({"cleanup.policy": "compact"}, [("cleanup.policy", SUBTRACT, "delete")], {"cleanup.policy": "compact"}),
        (
            {"retention.ms": "5", "segment.ms": "6"},
            [("retention.ms", SET, "7"), ("segment.ms", DELETE, None)],
            {"retention.ms": "7"},
        ),
    ],
)
def test_changes_of_settings(
    manager: LogManager,
    admin: NodeAdmin,
    before: dict[str, str],
    changes: list[tuple[str, Operation, str | None]],
    after: dict[str, str],
) -> None:
    manager.topics.create("t", 1, before, now_ms=NOW)
    alter(admin, *changes)
    assert own(manager) == after


@pytest.mark.parametrize(
    "change",
    [
        ("nope", SET, "1"),
        ("nope", APPEND, "1"),
        ("retention.ms", SET, "x"),
        ("retention.ms", SET, ""),
        ("retention.ms", APPEND, "1"),
        ("cleanup.policy", APPEND, "wrong"),
        ("cleanup.policy", SUBTRACT, "delete"),
        ("log.cleaner.threads", SET, "2"),
        ("remote.storage.enable", SET, "maybe"),
    ],
)
def test_a_refused_change_undoes_the_others_of_its_topic(
    manager: LogManager, admin: NodeAdmin, change: tuple[str, Operation, str | None]
) -> None:
    create(admin, "t")
    wrong = refused(lambda: alter(admin, ("segment.ms", SET, "60000"), change))
    assert (wrong.error, bool(wrong.message)) == (Error.INVALID_CONFIG, True)
    assert own(manager) == {}


def test_the_tier_of_a_topic_is_disabled_only_with_the_deletion_of_its_data(
    manager: LogManager, admin: NodeAdmin
) -> None:
    create(admin, "t", **TIERED)
    for change in (("remote.storage.enable", SET, "false"), ("remote.storage.enable", DELETE, None)):
        wrong = refused(lambda change=change: alter(admin, change))  # type: ignore[misc]
        assert (wrong.error, "remote.log.delete.on.disable" in (wrong.message or "")) == (Error.INVALID_CONFIG, True)
    alter(admin, ("remote.storage.enable", SET, "false"), ("remote.log.delete.on.disable", SET, "true"))
    assert own(manager)["remote.storage.enable"] == "false"


def test_replaced_settings_are_the_only_ones(manager: LogManager, admin: NodeAdmin) -> None:
    manager.topics.create("t", 1, {"retention.ms": "5", "segment.ms": "6"}, now_ms=NOW)
    admin.replace_settings("t", {"segment.ms": "7", "cleanup.policy": "compact"}, validate_only=False)
    assert own(manager) == {"segment.ms": "7", "cleanup.policy": "compact"}
    admin.replace_settings("t", {}, validate_only=False)
    assert own(manager) == {}


def test_records_are_deleted_and_wrong_offsets_refused(manager: LogManager, admin: NodeAdmin) -> None:
    create(admin, "t")
    create(admin, "keyed", **COMPACTED)
    send(manager, 40)
    assert admin.delete_records(NAME, 10) == 10
    assert admin.delete_records(NAME, 5) == 10, "the log start offset never falls"
    for offset in (41, -2):
        with pytest.raises(OffsetOutOfRange):
            admin.delete_records(NAME, offset)
    assert admin.delete_records(NAME, -1) == 40
    wrong = refused(lambda: admin.delete_records(TopicPartition("keyed", 0), 0))
    assert wrong.error == Error.POLICY_VIOLATION
    assert manager.reader().offsets(NAME) == (40, 40)


def two_dirs(world: World) -> World:
    world.config = replace(world.config, more_data_dirs=("./second",))
    return world


def test_a_partition_moves_and_is_shown_as_a_future_replica_until_then(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with two_dirs(world).open() as manager:
        admin = admin_of(manager)
        create(admin, "t")
        send(manager, 40)
        source = manager.directories.of(NAME).root
        target = {"./data": "./second", "./second": "./data"}[source]
        seen, note = list[list[tuple[str, bool]]](), admin._note_moved

        def look(*args: object) -> None:
            note(*args)  # type: ignore[arg-type]
            seen.append([(each.path, one.is_future) for each in admin.log_dirs() for one in each.replicas])

        monkeypatch.setattr(admin, "_note_moved", look)
        assert admin.check_move(NAME, target + "/")
        admin.move(NAME, target + "/")
        assert seen
        assert all(sorted(each) == sorted([(source, False), (target, True)]) for each in seen)
        assert not admin.check_move(NAME, target)
        (there,) = [each for each in admin.log_dirs() if each.replicas]
        assert (there.path, there.replicas[0].size_bytes) == (target, manager.partitions.find(NAME).log.size_bytes)
        assert refused(lambda: admin.check_move(NAME, "/nope")).error == Error.LOG_DIR_NOT_FOUND
        with pytest.raises(NotFound):
            admin.check_move(TopicPartition("nope", 0), target)


def test_a_stopping_node_ends_its_move_and_changes_nothing_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with two_dirs(world).open() as manager:
        admin = admin_of(manager)
        create(admin, "t")
        send(manager, 40)
        source = manager.directories.of(NAME).root
        target = {"./data": "./second", "./second": "./data"}[source]
        note, has_begun, is_closing = admin._note_moved, threading.Event(), threading.Event()

        def wait(*args: object) -> None:
            has_begun.set()
            assert is_closing.wait(60)
            note(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(admin, "_note_moved", wait)
        errors: list[LogError] = []

        def move() -> None:
            try:
                admin.move(NAME, target)
            except LogError as error:
                errors.append(error)

        mover = threading.Thread(target=move)
        mover.start()
        assert has_begun.wait(60)
        closer = threading.Thread(target=admin.close)
        closer.start()
        while not admin._is_closed:
            pass
        is_closing.set()
        mover.join()
        closer.join()
        assert [type(each) for each in errors] == [Unavailable]
        assert manager.directories.of(NAME).root == source
        send(manager, 10, start=40)
        with pytest.raises(Unavailable, match="stopping"):
            admin.delete_topic("t", None)


def entries(config: Config, own: dict[str, str]) -> dict[str, ConfigEntry]:
    return {each.name: each for each in TopicEntries(config).of("t", own)}


def test_settings_name_all_their_values_in_the_order_of_precedence(tmp_path) -> None:
    file = tmp_path / "tiered.toml"
    file.write_text('[defaults]\n"retention.ms" = "3d"\n[topics."t*"]\n"retention.ms" = "2d"\n"segment.ms" = "1h"\n')
    config = Config.load(str(file), {"segment.bytes": "2KiB"}, {})
    found = entries(config, {"retention.ms": "1d", "segment.bytes": "4KiB"})
    day = 86_400_000
    assert [(each.name, each.value, each.source) for each in found["retention.ms"].synonyms] == [
        ("retention.ms", str(day), ConfigSource.TOPIC),
        ("log.retention.ms", str(2 * day), ConfigSource.STATIC_BROKER),
        ("log.retention.ms", str(3 * day), ConfigSource.STATIC_BROKER),
        ("log.retention.ms", str(7 * day), ConfigSource.DEFAULT),
    ]
    assert (found["segment.ms"].value, found["segment.ms"].source) == ("3600000", ConfigSource.STATIC_BROKER)
    assert (found["segment.bytes"].value, found["segment.bytes"].source) == ("2048", ConfigSource.STATIC_BROKER)
    assert [each.value for each in found["segment.bytes"].synonyms] == ["2048", "4096", "1073741824"]
    assert set(found) == {row.name for row in PROPERTIES.values() if row.is_per_topic} | set(FIXED_OF_TOPICS)
    assert all(each.documentation for each in found.values())
    assert {each.name for each in found.values() if each.is_read_only} == set(FIXED_OF_TOPICS)


def test_topics_share_entries_only_where_the_same_globs_match_and_until_the_configuration_is_read_again(
    tmp_path, world: World
) -> None:
    file = tmp_path / "tiered.toml"
    file.write_text('[topics."a*"]\n"retention.ms" = "2d"\n[topics."*b"]\n"retention.ms" = "3d"\n')
    shared = TopicEntries(Config.load(str(file), {}, {}))
    days = {"x": 7, "a": 2, "b": 3, "ab": 3, "ac": 2}
    for name in (*days, *days):
        found = {each.name: each.value for each in shared.of(name, {"segment.ms": "5"})}
        assert (found["retention.ms"], found["segment.ms"]) == (str(days[name] * 86_400_000), "5"), name
    with world.open() as manager:
        admin = admin_of(manager)
        create(admin, "t")
        manager.topics.reload(replace(manager.config, defaults={"retention.ms": "9"}), now_ms=NOW)
        assert {each.name: each.value for each in admin.topic_configs("t")}["retention.ms"] == "9"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("retention.ms", ConfigType.LONG),
        ("segment.bytes", ConfigType.INT),
        ("retention.bytes", ConfigType.LONG),
        ("flush.messages", ConfigType.LONG),
        ("compression.zstd.level", ConfigType.INT),
        ("cleanup.policy", ConfigType.LIST),
        ("compression.type", ConfigType.STRING),
        ("remote.storage.enable", ConfigType.BOOLEAN),
        ("min.cleanable.dirty.ratio", ConfigType.DOUBLE),
        ("remote.copy.window", ConfigType.STRING),
    ],
)
def test_types_are_those_of_kafka(name: str, kind: ConfigType) -> None:
    assert type_of(PROPERTIES[name]) == kind


def test_settings_of_the_node_are_read_only_and_have_the_names_of_brokers(world: World) -> None:
    found = {each.name: each for each in node_entries(two_dirs(world).config, 3)}
    assert all(each.is_read_only for each in found.values())
    assert (found["node.id"].value, found["log.dirs"].value) == ("3", "./data,./second")
    assert (found["log.segment.bytes"].value, found["log.segment.bytes"].source) == ("2000", ConfigSource.STATIC_BROKER)
    assert found["log.retention.ms"].source == ConfigSource.DEFAULT
    assert found["auto.create.topics.enable"].value == "false"
    assert found["remote.fetch.cache.bytes"].value == str(256 << 20)
    assert not any("retention.hours" in name for name in found)


def test_a_crash_during_a_change_of_a_client_leaves_it_made_or_not_made(world: World) -> None:
    """Partitions are added and settings changed through `NodeAdmin`; the disk is cut after every effect."""
    rng, found = random.Random(7), set[tuple[int, str]]()
    with world.open() as manager:
        admin = admin_of(manager)
        create(admin, "t", retention_ms="5")
        send(manager, 20)
        manager.partitions.find(NAME).log.flush()

        def look() -> None:
            world.disk.watch = None
            for _ in range(CRASHES):
                found.add(state(world, world.disk.crash(rng)))
            world.disk.watch = look

        world.disk.watch = look
        admin.add_partitions("t", 3, validate_only=False)
        alter(admin, ("retention.ms", SET, "7"))
        world.disk.watch = None
        assert state(world, world.disk.crash(rng)) == (3, "7")
    assert found == {(1, "5"), (3, "5"), (3, "7")}


def state(world: World, disk: ModelDisk) -> tuple[int, str]:
    with world.open(disk=disk) as manager:
        topic = manager.topics.get("t")
        assert manager.problems == {}
        assert [each.name for each in manager.partitions.all(["t"])] == topic.partitions()
        assert manager.reader().offsets(NAME)[1] >= 20
        return topic.partition_count, topic.properties["retention.ms"]
