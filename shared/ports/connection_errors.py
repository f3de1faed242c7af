"""Describe why a connection gave no answer."""

import ssl
from collections.abc import Iterator, Mapping
from typing import Any

from shared.base.documents import Document

_ANOTHER_CA = frozenset({2, 7, 18, 19, 20, 21})
_ANOTHER_NAME = frozenset({62, 64})
_EXPIRED = 10
"""OpenSSL's results of verifying a certificate, ``X509_V_ERR_...``."""
_MAX_PAGE = 200


def explain(error: BaseException, trust: str = "") -> str:
    """Describe why no answer came; ``trust`` is the variable that names the CA."""
    from urllib3.exceptions import NameResolutionError
    from urllib3.exceptions import TimeoutError as Timeout

    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _explain_certificate(cause, trust)
        if isinstance(cause, NameResolutionError):
            return "its name cannot be resolved"
    said = [cause.strerror for cause in causes if isinstance(cause, OSError) and cause.strerror]
    if said:
        return said[0]
    # urllib3's error of a refused connection is also a timeout error, so timeouts are checked last.
    is_late = any(isinstance(cause, TimeoutError | Timeout) for cause in causes)
    return "no answer in time" if is_late else type(causes[-1]).__name__


def find_error_of_api(error: Any) -> Document | None:
    """What the API itself says about an error of a Google client; ``None`` if the answer is not the
    API's, which is JSON with an ``error``."""
    try:
        said = error.response.json()["error"]
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return said if isinstance(said, Mapping) else None


def explain_page(error: Any) -> str:
    """Describe an answer that is not the API's."""
    return (
        f"another server answers in place of the API ({error.code}); check its address, DNS and "
        f"proxies: {str(error.message)[:_MAX_PAGE]}"
    )


def _explain_certificate(error: ssl.SSLCertVerificationError, trust: str) -> str:
    said = error.verify_message.rstrip(".")
    if error.verify_code in _ANOTHER_CA:
        return f"its certificate is signed by another CA than that of {trust} ({said})"
    if error.verify_code in _ANOTHER_NAME:
        return f"its certificate is for another name or address ({said})"
    if error.verify_code == _EXPIRED:
        return "its certificate has expired"
    return f"its certificate cannot be verified ({said})"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and all its causes. urllib3 and requests also have causes in their arguments."""
    pending: list[object] = [error]
    seen: set[int] = set()
    while pending:
        found = pending.pop(0)
        if not isinstance(found, BaseException) or id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        pending += [*found.args, getattr(found, "reason", None), found.__cause__, found.__context__]
