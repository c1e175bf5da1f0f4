"""The next step for an error: the endpoint, credential, path or runbook that the error names.

Never a command that could have printed the error (`status`, `doctor`).
"""

from __future__ import annotations

from collections.abc import Mapping

from local.errors import AccessDenied, InvalidRequest, LogError

_RUNBOOKS, _HOW_TO = "docs/runbooks", "docs/how-to"
_KEY_RING = "the file of key_ring in [remote] of tiered.toml, or of TIERED_KEY_RING"
# By the class of the error, where its facts add nothing.
_BY_KIND = {
    "Corrupt": (f"{_RUNBOOKS}/corruption.md; tiered verify --deep checks the disk, tiered scrub --deep the bucket"),
    "Conflict": f"{_RUNBOOKS}/halted.md; stop one of the two writers",
    "Fenced": f"another writer took it over; stop one of the two: {_RUNBOOKS}/halted.md",
    "Diverged": f"save the records of this disk, or run --take-over: {_RUNBOOKS}/halted.md",
    "RemoteLost": f"correct url in [remote], or restore the bucket: {_RUNBOOKS}/bucket-lost.md",
    "InvalidRequest": "correct the named setting, in tiered.toml or on the topic",
    "OffsetOutOfRange": f"{_RUNBOOKS}/unopened.md",
}
_OF_DISK = ("eacces", "eperm", "erofs")
_FULL = ("enospc", "edquot")


def next_step(error: LogError) -> str:
    """The next step of an error, in one line."""
    return step_of(type(error).__name__, error.facts)


def step_of(kind: str, facts: Mapping[str, object]) -> str:
    """The next step for an error class with these facts, in one line; missing facts shorten it."""
    match kind:
        case "AccessDenied" | "InvalidRequest" if key := _key(facts):
            return f"add the key {key} to the key ring, {_KEY_RING}: {_HOW_TO}/encrypt-the-bucket.md"
        case "Unavailable":
            where = facts.get("endpoint") or facts.get("store") or "the endpoint of url in [remote]"
            return (
                f"check that {where} replies from this machine, every maintenance round retries: "
                f"{_RUNBOOKS}/store-fails.md"
            )
        case "AccessDenied" if facts.get("cause") in _OF_DISK:
            return f"run as the owner of {_path(facts)}"
        case "AccessDenied":
            words = "check the credential (AWS_PROFILE, AWS_ACCESS_KEY_ID, a shared file or a role) and its permissions"
            return f"{words}: {_RUNBOOKS}/store-fails.md"
        case "DiskFailed":
            page = "disk-full" if facts.get("cause") in _FULL else "log-dir-offline"
            return f"check the disk of {_path(facts)}: {_RUNBOOKS}/{page}.md"
        case "NotFound" if "directory" in facts:
            return f"create {facts['directory']}, mount its disk, or correct url in [remote]"
        case "NotFound":
            return f"restore the named thing, or correct url in [remote]: {_RUNBOOKS}/unopened.md"
    return _BY_KIND.get(kind, f"{_RUNBOOKS}/unopened.md")


def lacks_key(error: LogError) -> bool:
    """Whether the error names a key that the key ring lacks."""
    return isinstance(error, AccessDenied | InvalidRequest) and _key(error.facts) is not None


def _key(facts: Mapping[str, object]) -> object:
    """The id of the key that an error names."""
    return facts.get("key_id") or facts.get("remote.encryption.key.id")


def _path(facts: Mapping[str, object]) -> str:
    return str(facts.get("path") or facts.get("directory") or facts.get("file") or "the log directories")
