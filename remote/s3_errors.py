"""Foreign errors of the S3 client stack (s3fs, botocore, aiohttp) become ours here, and nowhere else.

The server's own texts are not passed on, only its error codes: texts can hold access keys. The order of the tests
matters: a code says more than a status, a status more than an exception's class.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

import aiohttp
from botocore import exceptions as boto
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from local.errors import AccessDenied, AlreadyExists, Corrupt, InvalidRequest, LogError, NotFound, Unavailable

FOREIGN_ERRORS = (OSError, BotoCoreError, ClientError, ResponseParserError, aiohttp.ClientError)
# What Python says of a wrong option's name, type or value; the client checks most of them by using them.
OPTION_ERRORS = (TypeError, ValueError, AttributeError, KeyError)
KEYS_TOLD = 3  # of those that a delete refuses

# Source: https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
_UNAVAILABLE = {
    "BandwidthLimitExceeded", "ConditionalRequestConflict", "InternalError", "InternalFailure", "OperationAborted",
    "RequestLimitExceeded", "RequestTimeout", "ServiceUnavailable", "SlowDown", "Throttling", "ThrottlingException",
    "TooManyRequests",
    # The body did not arrive as it was sent: once more.
    "BadDigest", "IncompleteBody", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch",
}  # fmt: skip
_DENIED = {
    "AccessDenied", "AccountProblem", "AllAccessDisabled", "ExpiredToken", "InvalidAccessKeyId",
    "InvalidSecurity", "InvalidToken", "NotSignedUp", "RequestTimeTooSkewed", "SignatureDoesNotMatch",
    "TokenRefreshRequired",
}  # fmt: skip
_CREDENTIALS = (boto.NoCredentialsError, boto.PartialCredentialsError, boto.TokenRetrievalError)
# The same options would fail again, so waiting does not help.
_CONFIGURATION = (
    boto.BaseEndpointResolverError,  # no or unknown region among them
    boto.ConfigNotFound,
    boto.ConfigParseError,
    boto.EndpointProviderError,
    boto.InvalidChecksumConfigError,
    boto.InvalidConfigError,
    boto.InvalidDefaultsMode,
    boto.InvalidDNSNameError,
    boto.InvalidEndpointConfigurationError,
    boto.InvalidHostLabelError,
    boto.InvalidProxiesConfigError,
    boto.InvalidRetryConfigurationError,
    boto.InvalidS3AddressingStyleError,
    boto.InvalidS3UsEast1RegionalEndpointConfigError,
    boto.MissingDependencyException,
    boto.ProfileNotFound,
    boto.UnknownCredentialError,
    boto.UnknownRegionError,
    boto.UnknownSignatureVersionError,
    boto.UnsupportedS3ConfigurationError,
    boto.UnsupportedSignatureVersionError,
    boto.ValidationError,  # an invalid region among them
)


@contextmanager
def translated(attempt: str, *, options: Iterable[str] = (), **facts: object) -> Iterator[None]:
    """Raises ours, told as `attempt` with `facts`, for whatever the client stack raises inside.

    `options` are the names of the client's options, told where it is one of them that is wrong.
    """
    try:
        yield
    except LogError:
        raise
    except (*FOREIGN_ERRORS, *OPTION_ERRORS) as error:
        # What the client says of options shows their values, also as the cause in a traceback.
        raise translate(error, attempt, facts, options) from (None if _is_about_options(error) else error)


def translate(error: BaseException, attempt: str, facts: dict[str, object], options: Iterable[str] = ()) -> LogError:
    """Ours for one of FOREIGN_ERRORS or OPTION_ERRORS."""
    if isinstance(error, LogError):
        return error
    code, status = _answer(error)
    if code or status:
        return of_answer(code, status, attempt, facts)
    if isinstance(error, _CREDENTIALS):
        return AccessDenied(f"{attempt}, no credentials", **facts)
    if isinstance(error, boto.ParamValidationError):
        return InvalidRequest(f"{attempt}, the client refuses the name or a parameter", **facts)
    if _is_about_options(error):
        told = {"options": ",".join(sorted(options)) or None, "cause": type(error).__name__}
        return InvalidRequest(f"{attempt}, the client refuses its options", **facts, **told)
    if isinstance(error, ResponseParserError):
        return Unavailable(f"{attempt}, the answer is not one of S3", **facts, cause=type(error).__name__)
    if isinstance(error, FileNotFoundError):
        return NotFound(f"{attempt}, there is none", **facts)
    if isinstance(error, FileExistsError):
        return AlreadyExists(f"{attempt}, the name is taken", **facts)
    if isinstance(error, PermissionError):
        return AccessDenied(f"{attempt}, no permission", **facts)
    told = {"endpoint": _endpoint(error), "cause": type(error).__name__}
    return Unavailable(f"{attempt}, the store cannot be reached", **facts, **told)


def refusal(refused: Sequence[tuple[str, str]], attempt: str, facts: dict[str, object]) -> LogError | None:
    """Ours for what one DeleteObjects refused: (key, error code) of each; None when that is nothing.

    The answer as a whole is a 200. A refusal that trying again does not mend is told before one that it may.
    """
    kinds: dict[type[LogError], list[tuple[str, str]]] = {}
    for key, code in refused:
        if code != "NoSuchKey":  # a missing key is no error
            kinds.setdefault(type(of_answer(code, 0, attempt, facts)), []).append((key, code))
    if not kinds:
        return None
    worst = min(kinds, key=lambda kind: kind is Unavailable)
    keys, code = [key for key, _ in kinds[worst]], kinds[worst][0][1]
    return of_answer(code, 0, attempt, {**facts, "keys": ",".join(keys[:KEYS_TOLD]), "refused": len(keys)})


def _is_about_options(error: BaseException) -> bool:
    if isinstance(error, OPTION_ERRORS) and not isinstance(error, FOREIGN_ERRORS):
        return True
    if type(error) is boto.HTTPClientError:  # wraps whatever came up while a request was made
        return isinstance(getattr(error, "kwargs", {}).get("error"), (*OPTION_ERRORS, FileNotFoundError))
    return isinstance(error, _CONFIGURATION)


def _endpoint(error: BaseException) -> str | None:
    """Scheme, host and port of the server that did not answer, where the client says so."""
    url = getattr(error, "kwargs", {}).get("endpoint_url")
    if not isinstance(url, str):
        return None
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")


def _answer(error: BaseException) -> tuple[str, int]:
    """(error code, HTTP status) of the server's answer; ("", 0) when there was none."""
    for each in (error, error.__cause__):
        response = getattr(each, "response", None)
        if isinstance(response, dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            return str(response.get("Error", {}).get("Code", "")), int(status or 0)
    return "", 0


def of_answer(code: str, status: int, attempt: str, facts: dict[str, object]) -> LogError:
    """Ours for what a server answered: its error code, "" for none, and the HTTP status."""
    facts = {**facts, "cause": code or status}
    if code == "NoSuchBucket":
        return NotFound(f"{attempt}, the bucket does not exist", **facts)
    if code in _UNAVAILABLE:
        return Unavailable(f"{attempt}, the store is busy or in trouble", **facts)
    if code == "InvalidObjectState":
        return AccessDenied(f"{attempt}, it is archived (its storage class) and has to be restored first", **facts)
    if code in _DENIED or status in (401, 403):
        return AccessDenied(f"{attempt}, no permission or wrong credentials", **facts)
    if code == "PreconditionFailed" or status == 412:
        return AlreadyExists(f"{attempt}, the name is taken", **facts)
    if code == "InvalidRange" or status == 416:
        return Corrupt(f"{attempt}, it ends before", **facts)
    if status == 404 or code in ("NoSuchKey", "NoSuchUpload", "404"):
        return NotFound(f"{attempt}, there is none", **facts)
    if status >= 500 or status in (408, 409, 429):
        return Unavailable(f"{attempt}, the store is busy or in trouble", **facts)
    if status in (301, 307) or code in ("AuthorizationHeaderMalformed", "PermanentRedirect"):
        return InvalidRequest(f"{attempt}, the bucket is in another region or behind another endpoint", **facts)
    return InvalidRequest(f"{attempt}, the store refuses the request", **facts)
