"""Translation of S3 server answers into errors; loads no client library while calls succeed.

The server's texts are not passed on, only its error codes: texts can hold access keys. A code is preferred to a status.
`remote.store.s3_errors` translates errors of the client stack itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from local.errors import AccessDenied, AlreadyExists, Corrupt, InvalidRequest, LogError, NotFound, Unavailable

BROKE_OFF = "the reply was truncated"
KEYS_LISTED = 3  # at most this many of the keys that a delete refuses

# Source: https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
_UNAVAILABLE = {
    "BandwidthLimitExceeded", "ConditionalRequestConflict", "InternalError", "InternalFailure", "OperationAborted",
    "RequestLimitExceeded", "RequestTimeout", "ServiceUnavailable", "SlowDown", "Throttling", "ThrottlingException",
    "TooManyRequests",
    # The body arrived changed: send it again.
    "BadDigest", "IncompleteBody", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch",
}  # fmt: skip
_DENIED = {
    "AccessDenied", "AccountProblem", "AllAccessDisabled", "ExpiredToken", "InvalidAccessKeyId",
    "InvalidSecurity", "InvalidToken", "NotSignedUp", "RequestTimeTooSkewed", "SignatureDoesNotMatch",
    "TokenRefreshRequired",
}  # fmt: skip


@contextmanager
def translated(attempt: str, *, options: Iterable[str] = (), **facts: object) -> Iterator[None]:
    """Raise this project's error for any error of the client. `options` are the names of its options."""
    try:
        yield
    except LogError:
        raise
    except Exception as error:
        from remote.store.s3_errors import EXTERNAL_ERRORS, OPTION_ERRORS, is_about_options, translate

        if not isinstance(error, (*EXTERNAL_ERRORS, *OPTION_ERRORS)):
            raise
        # The client's errors about options show their values, also as a cause in a traceback.
        raise translate(error, attempt, facts, options) from (None if is_about_options(error) else error)


def refusal(refused: Sequence[tuple[str, str]], attempt: str, facts: dict[str, object]) -> LogError | None:
    """Return the error for the refusals of one DeleteObjects; None without a refusal.

    `refused` holds (key, error code). The response as a whole is a 200. A permanent refusal is reported before one that
    a retry may resolve.
    """
    kinds: dict[type[LogError], list[tuple[str, str]]] = {}
    for key, code in refused:
        if code != "NoSuchKey":  # a missing key is no error
            kinds.setdefault(type(of_answer(code, 0, attempt, facts)), []).append((key, code))
    if not kinds:
        return None
    worst = min(kinds, key=lambda kind: kind is Unavailable)
    keys, code = [key for key, _ in kinds[worst]], kinds[worst][0][1]
    return of_answer(code, 0, attempt, {**facts, "keys": ",".join(keys[:KEYS_LISTED]), "refused": len(keys)})


def of_answer(code: str, status: int, attempt: str, facts: dict[str, object]) -> LogError:
    """Return this project's error for a server's answer: error code ("" for none) and HTTP status."""
    facts = {**facts, "cause": code or status}
    if code == "NoSuchBucket":
        return NotFound(f"{attempt}, the bucket does not exist", **facts)
    if code in _UNAVAILABLE:
        return Unavailable(f"{attempt}, the store is busy or has an internal error", **facts)
    if code == "InvalidObjectState":
        return AccessDenied(f"{attempt}, it is archived (its storage class) and must be restored first", **facts)
    if code in _DENIED or status in (401, 403):
        return AccessDenied(f"{attempt}, access was denied or the credentials are wrong", **facts)
    if code == "PreconditionFailed" or status == 412:
        return AlreadyExists(f"{attempt}, the name already exists", **facts)
    if code == "InvalidRange" or status == 416:
        return Corrupt(f"{attempt}, the object ends before the range", **facts)
    if status == 404 or code in ("NoSuchKey", "NoSuchUpload", "404"):
        return NotFound(f"{attempt}, it does not exist", **facts)
    if status >= 500 or status in (408, 409, 429):
        return Unavailable(f"{attempt}, the store is busy or has an internal error", **facts)
    if status in (301, 307) or code in ("AuthorizationHeaderMalformed", "PermanentRedirect"):
        return InvalidRequest(f"{attempt}, the bucket is in another region or has another endpoint", **facts)
    return InvalidRequest(f"{attempt}, the store rejected the request", **facts)
