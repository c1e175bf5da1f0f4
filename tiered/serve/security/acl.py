"""ACLs: which principal may do which operation on which resource. Source: kafka `StandardAuthorizerData`, `AclEntry`.

A decision takes these steps; the first one that applies decides:

1. A super user may do everything, and so may the peer of a Unix socket.
2. A matching rule that denies: no.
3. A matching rule that allows: yes.
4. No rule names the resource: `allow.everyone.if.no.acl.found`, which is no by default.
5. No.

A rule matches if principal, host, resource and operation match. A rule that allows an operation also allows those that
IMPLIED lists for it. A rule that denies one denies that one only. ALL stands for every operation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum

from tiered.serve.security.principals import LOCAL, Principal

ANY_NAME = "*"
CLUSTER_NAME = "kafka-cluster"


class Operation(IntEnum):
    """Source: kafka `AclOperation`; 1 << value is the bit in the field authorized operations."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class Kind(Enum):
    """The kind of a resource."""

    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"
    TRANSACTIONAL_ID = "transactional_id"


# The operations whose permission includes another one. Source: kafka `AclEntry` and KIP-11.
IMPLIED: Mapping[Operation, frozenset[Operation]] = {
    Operation.DESCRIBE: frozenset((Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)),
    Operation.DESCRIBE_CONFIGS: frozenset((Operation.ALTER_CONFIGS,)),
}
# The operations that a rule may name for a kind. Source: kafka `AclEntry.supportedOperations`.
OPERATIONS: Mapping[Kind, frozenset[Operation]] = {
    Kind.TOPIC: frozenset(Operation) - {Operation.CLUSTER_ACTION, Operation.IDEMPOTENT_WRITE},
    Kind.GROUP: frozenset(
        (
            Operation.ALL,
            Operation.READ,
            Operation.DESCRIBE,
            Operation.DELETE,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
        )
    ),
    Kind.CLUSTER: frozenset(Operation) - {Operation.READ, Operation.WRITE, Operation.DELETE},
    Kind.TRANSACTIONAL_ID: frozenset((Operation.ALL, Operation.DESCRIBE, Operation.WRITE)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AclEntry:
    """`principal` None: every one. `name` is literal, ANY_NAME, or a prefix. `host` is an address or ANY_NAME."""

    principal: Principal | None
    kind: Kind
    name: str
    is_prefix: bool = False
    operations: frozenset[Operation]
    is_allowed: bool = True
    host: str = ANY_NAME

    def is_for(self, principal: Principal, host: str) -> bool:
        return self.principal in (None, principal) and self.host in (ANY_NAME, host)

    def has(self, operation: Operation) -> bool:
        named = self.operations
        return (
            operation in named
            or Operation.ALL in named
            or (self.is_allowed and not named.isdisjoint(IMPLIED.get(operation, ())))
        )


class Acl:
    """An immutable set of rules."""

    def __init__(
        self, rules: Sequence[AclEntry], *, super_users: Collection[Principal] = (), is_open_by_default: bool = False
    ) -> None:
        self._super_users = frozenset(super_users) | {LOCAL}
        self._is_open_by_default = is_open_by_default
        self._literal: dict[tuple[Kind, str], list[AclEntry]] = {}
        self._prefixed: dict[tuple[Kind, str], list[AclEntry]] = {}
        for rule in rules:
            table = self._prefixed if rule.is_prefix else self._literal
            table.setdefault((rule.kind, rule.name), []).append(rule)
        self._lengths = {kind: sorted({len(name) for each, name in self._prefixed if each is kind}) for kind in Kind}

    def may(self, principal: Principal, host: str, operation: Operation, kind: Kind, name: str) -> bool:
        if principal in self._super_users:
            return True
        is_named = is_allowed = False
        for rule in self._rules(kind, name):
            is_named = True
            if rule.is_for(principal, host) and rule.has(operation):
                if not rule.is_allowed:
                    return False
                is_allowed = True
        return is_allowed or (not is_named and self._is_open_by_default)

    def may_some(self, principal: Principal, host: str, operation: Operation, kind: Kind) -> bool:
        """Whether a resource of the kind can exist for which the operation is allowed.

        Source: kafka `Authorizer.authorizeByResourceType`.
        """
        if principal in self._super_users:
            return True
        mine = [
            rule
            for table in (self._literal, self._prefixed)
            for rules in table.values()
            for rule in rules
            if rule.kind is kind
            and rule.is_for(principal, host)
            and not rule.operations.isdisjoint((operation, Operation.ALL))
        ]
        denied = [rule for rule in mine if not rule.is_allowed]
        if any(rule.name == ANY_NAME and not rule.is_prefix for rule in denied):
            return False
        allowed = [rule for rule in mine if rule.is_allowed]
        return self._is_open_by_default or any(not _is_covered(rule, denied) for rule in allowed)

    def _rules(self, kind: Kind, name: str) -> Iterator[AclEntry]:
        yield from self._literal.get((kind, name), ())
        if name != ANY_NAME:
            yield from self._literal.get((kind, ANY_NAME), ())
        for length in self._lengths[kind]:
            if length > len(name):
                break
            yield from self._prefixed.get((kind, name[:length]), ())


def _is_covered(allowed: AclEntry, denied: Sequence[AclEntry]) -> bool:
    """Whether a denial covers every name that `allowed` has."""
    if allowed.name == ANY_NAME and not allowed.is_prefix:
        return False
    return any(
        allowed.name.startswith(each.name) if each.is_prefix else not allowed.is_prefix and each.name == allowed.name
        for each in denied
    )
