"""Keep secrets out of configuration files: option names that look like one, and the exceptions.

The store's clients find credentials by themselves, in the environment (``AWS_ACCESS_KEY_ID``, ...) or in a named
profile, so a file never needs them. A loopback endpoint (a test server) may carry dummy ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import SplitResult, urlsplit

from local.errors import InvalidRequest

_MARKS = ("secret", "password", "passwd", "token", "credential", "access_key", "account_key", "private_key", "sas")
_NAMES = ("key", "pwd", "connection_string")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_HINT = "use AWS_* environment variables or options = { profile = ... }"


def check_no_secret(url: str | None, options: Mapping[str, object], file: str | None) -> None:
    """Refuse a secret in the url or the options.

    Raises InvalidRequest, naming the option and never its value.
    """
    if url is not None and "@" in split_url(url).netloc and not url.startswith("hdfs://"):
        raise InvalidRequest(f"invalid configuration, the url contains credentials; {_HINT}", file=file)
    if is_loopback(options):
        return
    for name in _secret_names(options):
        raise InvalidRequest(
            f"invalid configuration, an option looks like a secret; {_HINT}",
            option=name,
            section="remote",
            file=file,
        )


def is_loopback(options: Mapping[str, object]) -> bool:
    """Whether the options send every request to this machine."""
    endpoints = [value for name, value in _leaves(options) if name in ("endpoint_url", "endpoint")]
    return bool(endpoints) and all(split_url(str(value)).hostname in _LOOPBACK for value in endpoints)


def without_secrets(options: Mapping[str, object]) -> dict[str, object]:
    """The options without names that look like a secret's, in nested tables too; values as text."""
    return {
        name: without_secrets(value) if isinstance(value, Mapping) else str(value)
        for name, value in options.items()
        if not _is_secret(name)
    }


def split_url(url: str) -> SplitResult:
    """The parts of a URL. Raises InvalidRequest, without showing it, for no URL (``s3://[x``, not UTF-8)."""
    try:
        url.encode()
        return urlsplit(url)
    except ValueError:
        raise InvalidRequest("invalid url, expected scheme://host/path") from None


def _secret_names(options: Mapping[str, object]) -> Iterator[str]:
    yield from (name for name, _ in _leaves(options) if _is_secret(name))


def _is_secret(name: str) -> bool:
    lower = name.lower()
    return lower in _NAMES or any(mark in lower for mark in _MARKS)


def _leaves(options: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Option names and values, including those in nested tables and lists."""
    for name, value in options.items():
        yield from _leaves_of(name, value)


def _leaves_of(name: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        yield from _leaves(value)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _leaves_of(name, each)
    else:
        yield name, value
