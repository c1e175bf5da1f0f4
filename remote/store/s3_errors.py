"""Translation of errors of the S3 client stack (s3fs, botocore, aiohttp); loaded on the first error.

The server's texts are not passed on, only its error codes: texts can hold access keys. The order of the tests matters:
a code is preferred to a status, a status to an exception's class.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

import aiohttp
from botocore import exceptions as boto
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from local.errors import AccessDenied, AlreadyExists, ErrorCode, InvalidRequest, LogError, NotFound, Unavailable
from remote.store.s3_store import BROKE_OFF, of_answer

EXTERNAL_ERRORS = (OSError, BotoCoreError, ClientError, ResponseParserError, aiohttp.ClientError)
# Python's errors for a wrong name, type or value of an option; the client detects most of them only in use.
OPTION_ERRORS = (TypeError, ValueError, AttributeError, KeyError)

_CREDENTIALS = (boto.NoCredentialsError, boto.PartialCredentialsError, boto.TokenRetrievalError)
_BROKEN = (aiohttp.ClientPayloadError, boto.IncompleteReadError, boto.ResponseStreamingError)
# The same options would fail again, so waiting does not help.
_CONFIGURATION = tuple(
    getattr(boto, name)
    for name in (
        "BaseEndpointResolverError",  # includes a missing or unknown region
        "ConfigNotFound", "ConfigParseError", "EndpointProviderError", "InvalidChecksumConfigError",
        "InvalidConfigError", "InvalidDefaultsMode", "InvalidDNSNameError", "InvalidEndpointConfigurationError",
        "InvalidHostLabelError", "InvalidProxiesConfigError", "InvalidRetryConfigurationError",
        "InvalidS3AddressingStyleError", "InvalidS3UsEast1RegionalEndpointConfigError", "MissingDependencyException",
        "ProfileNotFound", "UnknownCredentialError", "UnknownRegionError", "UnknownSignatureVersionError",
        "UnsupportedS3ConfigurationError", "UnsupportedSignatureVersionError",
        "ValidationError",  # includes an invalid region
    )
)  # fmt: skip


def translate(error: BaseException, attempt: str, facts: dict[str, object], options: Iterable[str] = ()) -> LogError:
    if isinstance(error, LogError):
        return error
    code, status = _answer(error)
    if code or status:
        return of_answer(code, status, attempt, facts)
    if isinstance(error, _CREDENTIALS):
        return AccessDenied(f"{attempt}, there are no credentials", **facts).with_code(ErrorCode.CREDENTIALS_MISSING)
    if isinstance(error, boto.ParamValidationError):
        return InvalidRequest(f"{attempt}, the client rejected the name or a parameter", **facts)
    if is_about_options(error):
        client_facts = {"options": ",".join(sorted(options)) or None, "cause": type(error).__name__}
        return InvalidRequest(f"{attempt}, the client rejected its options", **facts, **client_facts)
    if isinstance(error, ResponseParserError):
        return Unavailable(f"{attempt}, the reply is not an S3 reply", **facts, cause=type(error).__name__)
    if isinstance(error, FileNotFoundError):
        return NotFound(f"{attempt}, it does not exist", **facts)
    if isinstance(error, FileExistsError):
        return AlreadyExists(f"{attempt}, the name already exists", **facts)
    if isinstance(error, PermissionError):
        return AccessDenied(f"{attempt}, access was denied", **facts)
    client_facts = {"endpoint": _endpoint(error), "cause": type(error).__name__}
    what = BROKE_OFF if isinstance(error, _BROKEN) else "the store cannot be reached"
    return Unavailable(f"{attempt}, {what}", **facts, **client_facts)


def is_about_options(error: BaseException) -> bool:
    """Whether the options are wrong: the client's text then shows their values."""
    if isinstance(error, OPTION_ERRORS) and not isinstance(error, EXTERNAL_ERRORS):
        return True
    if type(error) is boto.HTTPClientError:  # wraps any error during a request
        return isinstance(getattr(error, "kwargs", {}).get("error"), (*OPTION_ERRORS, FileNotFoundError))
    return isinstance(error, _CONFIGURATION)


def _endpoint(error: BaseException) -> str | None:
    url = getattr(error, "kwargs", {}).get("endpoint_url")
    if not isinstance(url, str):
        return None
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")


def _answer(error: BaseException) -> tuple[str, int]:
    """Return (error code, HTTP status) of the server's answer; ("", 0) without one."""
    for each in (error, error.__cause__):
        response = getattr(each, "response", None)
        if isinstance(response, dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            return str(response.get("Error", {}).get("Code", "")), int(status or 0)
    return "", 0
