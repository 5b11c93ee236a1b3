"""What goes wrong with an address, as an OSError in our words: those of libraries may hold a signed URL."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

from foretrace.errors import InputError, UsageError
from foretrace.remote.patience import answer_s, patience_s
from foretrace.secret_formats import without_known_secrets

_NOTHING = "there is nothing at this address"
_QUERY = re.compile(r"\?[^\s'\"<>)\]]+")


class NoRangesError(Exception):
    """The server gives all, whatever is asked for; it never leaves this module."""


@contextmanager
def asking() -> Iterator[None]:
    """What fsspec and the libraries below it raise, as an OSError in our words, without the address."""
    try:
        yield
    except (NoRangesError, InputError, UsageError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise _told(error) from None


def nothing() -> OSError:
    return FileNotFoundError(errno.ENOENT, _NOTHING)


def broken_off() -> OSError:
    return ConnectionResetError(errno.ECONNRESET, "the connection broke off")


def is_passing(error: OSError) -> bool:
    """Whether asking again may help."""
    return isinstance(error, ConnectionError | TimeoutError) or error.errno == errno.EBUSY


def _told(error: BaseException) -> OSError:
    chain = _chain(error)
    kinds = {kind.__name__ for each in chain for kind in type(each).__mro__}
    status = next((found for each in chain if (found := _status(each)) is not None), None)
    if isinstance(error, ConnectionResetError) and error.strerror == broken_off().strerror:
        return error
    if kinds & {"ClientPayloadError", "ServerDisconnectedError", "IncompleteRead"}:
        return broken_off()
    if status in (401, 403) or "PermissionError" in kinds:
        return PermissionError(
            errno.EACCES,
            f"the server refuses it ({status or 403}): credentials come from the environment alone",
        )
    if kinds & {
        "NoCredentialsError",
        "PartialCredentialsError",
        "ProfileNotFound",
        "DefaultCredentialsError",
    }:
        return PermissionError(errno.EACCES, "no credentials in the environment")
    if "NoSuchBucket" in str(error) or "bucket does not exist" in str(error):
        return FileNotFoundError(errno.ENOENT, "there is no such bucket")
    if status in (404, 410):
        return nothing()
    if status is not None and status >= 400:
        busy = status == 429 or status >= 500
        return OSError(errno.EBUSY if busy else errno.EIO, f"the server answered {status}")
    if kinds & {
        "TimeoutError",
        "FSTimeoutError",
        "ConnectTimeoutError",
        "ReadTimeoutError",
        "ServerTimeoutError",
    }:
        silent = bool(kinds & {"ServerTimeoutError", "ConnectTimeoutError", "ReadTimeoutError"})
        says = f"no answer for {patience_s():g} s" if silent else f"no whole answer in {answer_s():g} s"
        return TimeoutError(errno.ETIMEDOUT, says)
    if kinds & {"ClientConnectorCertificateError", "SSLError", "SSLCertVerificationError", "ClientSSLError"}:
        return OSError(errno.EIO, "its certificate is not trusted here")
    if kinds & {"ClientConnectorDNSError", "gaierror"}:
        return OSError(errno.EHOSTUNREACH, "its host is not known")
    if kinds & {"ConnectionRefusedError", "ClientConnectorError", "EndpointConnectionError"}:
        return ConnectionRefusedError(errno.ECONNREFUSED, "it cannot be reached: the connection is refused")
    if kinds & {"ConnectionError", "HTTPClientError"}:
        return broken_off()
    if kinds & {"InvalidURL", "InvalidUrlClientError", "ParamValidationError"}:
        return OSError(errno.EINVAL, "no address that can be read")
    if "FileNotFoundError" in kinds:
        return nothing()
    return OSError(errno.EIO, _clean(error))


def _chain(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in found:
        found.append(following)
        following = following.__cause__ or following.__context__
    return found


def _status(error: BaseException) -> int | None:
    """Of an HTTP answer."""
    status = getattr(error, "status", None)
    if status is None and isinstance(response := getattr(error, "response", None), dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    if status is None and type(error).__name__ == "HttpError":  # of gcsfs
        status = getattr(error, "code", None)
    return status if isinstance(status, int) and 100 <= status < 600 else None


def _clean(error: BaseException) -> str:
    """What an unknown error says, without what may be a secret in it."""
    says = without_known_secrets(_QUERY.sub("?…", " ".join(str(error).split())[:200]))
    return f"{type(error).__name__}: {says}" if says else type(error).__name__
