"""Decisions of ACLs as a table, and laws that hold for any rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.serve.security.acl import IMPLIED, OPERATIONS, Acl, AclEntry, Kind, Operation
from tiered.serve.security.principals import LOCAL, Principal

ALICE, BOB = Principal("alice"), Principal("bob")
HERE, THERE = "10.0.0.1", "10.0.0.2"
READ, WRITE, DESCRIBE, DELETE, ALTER = (
    Operation.READ,
    Operation.WRITE,
    Operation.DESCRIBE,
    Operation.DELETE,
    Operation.ALTER,
)


def rule(operation: Operation = READ, name: str = "orders", **fields: object) -> AclEntry:
    given = {"principal": ALICE, "kind": Kind.TOPIC, "operations": frozenset((operation,)), "name": name, **fields}
    return AclEntry(**given)  # type: ignore[arg-type]


PREFIX = {"is_prefix": True}
DENY = {"is_allowed": False}
# rules, principal, host, operation, topic, decision
TABLE = [
    ([], ALICE, HERE, READ, "orders", False),
    ([rule()], ALICE, HERE, READ, "orders", True),
    ([rule()], BOB, HERE, READ, "orders", False),
    ([rule(principal=None)], BOB, HERE, READ, "orders", True),
    ([rule()], ALICE, HERE, WRITE, "orders", False),
    ([rule()], ALICE, HERE, READ, "orders2", False),
    ([rule()], ALICE, HERE, READ, "order", False),
    ([rule(name="ord", **PREFIX)], ALICE, HERE, READ, "orders", True),
    ([rule(name="ord", **PREFIX)], ALICE, HERE, READ, "ord", True),
    ([rule(name="ord", **PREFIX)], ALICE, HERE, READ, "or", False),
    ([rule(name="*")], ALICE, HERE, READ, "anything", True),
    ([rule(name="*", **PREFIX)], ALICE, HERE, READ, "anything", False),
    ([rule(host=HERE)], ALICE, HERE, READ, "orders", True),
    ([rule(host=HERE)], ALICE, THERE, READ, "orders", False),
    ([rule(Operation.ALL)], ALICE, HERE, DELETE, "orders", True),
    ([rule(), rule(**DENY)], ALICE, HERE, READ, "orders", False),
    ([rule(name="*"), rule(**DENY)], ALICE, HERE, READ, "orders", False),
    ([rule(), rule(name="*", **DENY)], ALICE, HERE, READ, "orders", False),
    ([rule(), rule(name="o", **PREFIX, **DENY)], ALICE, HERE, READ, "orders", False),
    ([rule(), rule(principal=None, **DENY)], ALICE, HERE, READ, "orders", False),
    ([rule(), rule(host=THERE, **DENY)], ALICE, HERE, READ, "orders", True),
    ([rule(), rule(Operation.ALL, **DENY)], ALICE, HERE, READ, "orders", False),
    ([rule(), rule(WRITE, **DENY)], ALICE, HERE, READ, "orders", True),
    # an allowed operation implies others, a denied one does not
    ([rule(READ)], ALICE, HERE, DESCRIBE, "orders", True),
    ([rule(WRITE)], ALICE, HERE, DESCRIBE, "orders", True),
    ([rule(DELETE)], ALICE, HERE, DESCRIBE, "orders", True),
    ([rule(ALTER)], ALICE, HERE, DESCRIBE, "orders", True),
    ([rule(Operation.CREATE)], ALICE, HERE, DESCRIBE, "orders", False),
    ([rule(Operation.ALTER_CONFIGS)], ALICE, HERE, Operation.DESCRIBE_CONFIGS, "orders", True),
    ([rule(DESCRIBE)], ALICE, HERE, READ, "orders", False),
    ([rule(DESCRIBE), rule(READ, **DENY)], ALICE, HERE, DESCRIBE, "orders", True),
    ([rule(READ), rule(DESCRIBE, **DENY)], ALICE, HERE, DESCRIBE, "orders", False),
    ([rule(READ), rule(DESCRIBE, **DENY)], ALICE, HERE, READ, "orders", True),
    ([rule(kind=Kind.GROUP)], ALICE, HERE, READ, "orders", False),
]


@pytest.mark.parametrize(("rules", "principal", "host", "operation", "topic", "decision"), TABLE)
def test_a_decision(
    rules: list[AclEntry], principal: Principal, host: str, operation: Operation, topic: str, decision: bool
) -> None:
    assert Acl(rules).may(principal, host, operation, Kind.TOPIC, topic) is decision


def test_super_users_and_the_local_process_are_never_refused() -> None:
    found = Acl([rule(principal=None, name="*", **DENY)], super_users=[BOB])
    assert [found.may(each, HERE, READ, Kind.TOPIC, "orders") for each in (ALICE, BOB, LOCAL)] == [False, True, True]
    assert not found.may(Principal("local"), HERE, READ, Kind.TOPIC, "orders")
    assert [found.may_some(each, HERE, WRITE, Kind.TOPIC) for each in (ALICE, BOB)] == [False, True]


def test_a_resource_that_no_rule_names_is_open_only_by_the_setting() -> None:
    found = Acl([rule()], is_open_by_default=True)
    assert found.may(BOB, HERE, READ, Kind.TOPIC, "others")
    assert not found.may(BOB, HERE, READ, Kind.TOPIC, "orders")


@pytest.mark.parametrize(
    ("rules", "decision"),
    [
        ([], False),
        ([rule(WRITE)], True),
        ([rule(READ)], False),
        ([rule(Operation.ALL)], True),
        ([rule(WRITE), rule(WRITE, **DENY)], False),
        ([rule(WRITE), rule(WRITE, name="orders2", **DENY)], True),
        ([rule(WRITE), rule(WRITE, name="or", **PREFIX, **DENY)], False),
        ([rule(WRITE, name="or", **PREFIX), rule(WRITE, name="orders", **DENY)], True),
        ([rule(WRITE, name="or", **PREFIX), rule(WRITE, name="o", **PREFIX, **DENY)], False),
        ([rule(WRITE, name="*"), rule(WRITE, name="o", **PREFIX, **DENY)], True),
        ([rule(WRITE), rule(WRITE, name="*", **DENY)], False),
        ([rule(WRITE, kind=Kind.GROUP)], False),
        ([rule(WRITE, principal=BOB)], False),
    ],
)
def test_an_operation_on_some_resource(rules: list[AclEntry], decision: bool) -> None:
    assert Acl(rules).may_some(ALICE, HERE, WRITE, Kind.TOPIC) is decision


RULES = st.builds(
    AclEntry,
    principal=st.sampled_from([None, ALICE, BOB]),
    kind=st.sampled_from(Kind),
    name=st.sampled_from(["*", "a", "ab", "abc", ""]),
    is_prefix=st.booleans(),
    operations=st.frozensets(st.sampled_from(Operation), min_size=1),
    is_allowed=st.booleans(),
    host=st.sampled_from(["*", HERE, THERE]),
)


@given(
    st.lists(RULES, max_size=8),
    RULES,
    st.sampled_from(Operation),
    st.sampled_from(Kind),
    st.sampled_from(["ab", "abc", "b"]),
)
def test_a_denial_never_permits_and_a_permission_never_denies(
    rules: list[AclEntry], another: AclEntry, operation: Operation, kind: Kind, name: str
) -> None:
    before = Acl(rules).may(ALICE, HERE, operation, kind, name)
    after = Acl([*rules, another]).may(ALICE, HERE, operation, kind, name)
    assert before <= after if another.is_allowed else before >= after
    if after:
        named = {operation, Operation.ALL, *IMPLIED.get(operation, ())}
        assert any(each.is_allowed and each.operations & named for each in [*rules, another])


def test_every_kind_has_operations() -> None:
    assert OPERATIONS.keys() == set(Kind)
