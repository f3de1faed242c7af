"""The errors of an API server, which it returns as a `Status` object.

Each function below builds one kind of error; all codes and reasons of this package are defined here.
Messages follow those of k8s.io/apimachinery where clients show them often.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class FieldError:
    """One violation of one field of an object, as in the causes of a 422."""

    reason: str
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class ApiError(Exception):
    """An error, as a client receives it.

    ``reason`` is empty where Kubernetes gives none; ``details`` is the Status object's field of that
    name (name, group, kind, uid, causes, retryAfterSeconds).
    """

    def __init__(
        self, code: int, reason: str, message: str, details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = dict(details or {})

    def status(self) -> dict[str, Any]:
        """The Status object: the body of the response."""
        status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": self.details,
            "code": self.code,
        }
        return {name: value for name, value in status.items() if value or name == "metadata"}


def render_warnings(warnings: Sequence[str]) -> str:
    """The Warning header."""
    return ", ".join(f"299 - {json.dumps(text)}" for text in warnings)


def _named(qualified: str, name: str, causes: Sequence[FieldError] = ()) -> dict[str, Any]:
    plural, _, group = qualified.partition(".")
    details = {
        "name": name,
        "group": group,
        "kind": plural,
        "causes": [
            {"reason": one.reason, "message": one.message, "field": one.field} for one in causes
        ],
    }
    return {key: value for key, value in details.items() if value}


# -- errors ----------------------------------------------------------------------------------------


class Undecodable(ApiError):
    """400: a body that cannot be decoded as an object of its kind. (422 if it results from a patch.)"""

    def __init__(self, message: str) -> None:
        super().__init__(400, "BadRequest", message)


class UnknownPath(ApiError):
    """404 of a URL that is not served; the response is plain text."""

    TEXT = "404 page not found\n"

    def __init__(self) -> None:
        super().__init__(404, "NotFound", self.TEXT)


class Expired(ApiError):
    """410: the requested version is older than the history."""

    def __init__(self, asked: int, oldest: int) -> None:
        super().__init__(410, "Expired", f"too old resource version: {asked} ({oldest})")


def bad_request(message: str) -> ApiError:
    """400: the request cannot be parsed, or its body contradicts the URL."""
    return ApiError(400, "BadRequest", message)


def mismatch(field: str, found: str, wanted: str) -> ApiError:
    """400 of a body whose name or namespace is not the URL's."""
    return bad_request(
        f"the {field} of the object ({found}) does not match the {field} on the URL ({wanted})"
    )


def unauthorized() -> ApiError:
    """401: the credentials are unknown."""
    return ApiError(401, "Unauthorized", "Unauthorized")


def forbidden(qualified: str, name: str, why: str, causes: Sequence[FieldError] = ()) -> ApiError:
    """403: ``why`` completes the message, as in ``User "u" cannot get resource ...``."""
    shown = f'{qualified} "{name}"' if name else qualified
    message = f"{shown} is forbidden: {why}"
    return ApiError(403, "Forbidden", message, _named(qualified, name, causes))


def forbidden_path(why: str) -> ApiError:
    """403 for a URL that is no resource."""
    return ApiError(403, "Forbidden", f"forbidden: {why}")


def not_found(qualified: str, name: str) -> ApiError:
    """404: the resource is served, but the object does not exist."""
    return ApiError(404, "NotFound", f'{qualified} "{name}" not found', _named(qualified, name))


def method_not_allowed() -> ApiError:
    """405: the resource exists, but does not have this verb."""
    message = "the server does not allow this method on the requested resource"
    return ApiError(405, "MethodNotAllowed", message)


def not_acceptable() -> ApiError:
    """406: none of the accepted media types is available."""
    message = "only the following media types are accepted: application/json"
    return ApiError(406, "NotAcceptable", message)


def already_exists(qualified: str, name: str) -> ApiError:
    """409: an object of this name exists."""
    message = f'{qualified} "{name}" already exists'
    return ApiError(409, "AlreadyExists", message, _named(qualified, name))


MODIFIED = (
    "the object has been modified; please apply your changes to the latest version and try again"
)


def conflict(qualified: str, name: str, why: str) -> ApiError:
    """409: a precondition does not hold."""
    message = f'Operation cannot be fulfilled on {qualified} "{name}": {why}'
    return ApiError(409, "Conflict", message, _named(qualified, name))


def unsupported_media_type(accepted: Sequence[str], hint: str = "") -> ApiError:
    """415: the body has an unsupported media type; ``hint`` is added to the message."""
    message = "the body of the request was in an unknown format - accepted media types include: "
    return ApiError(415, "UnsupportedMediaType", f"{message}{', '.join(accepted)}{hint}")


def invalid(qualified_kind: str, name: str, errors: Sequence[FieldError]) -> ApiError:
    """422: the object was decoded, but is invalid. ``qualified_kind``: ``Widget.example.com``."""
    joined = str(errors[0]) if len(errors) == 1 else f"[{', '.join(map(str, errors))}]"
    message = f'{qualified_kind} "{name}" is invalid: {joined}'
    return ApiError(422, "Invalid", message, _named(qualified_kind, name, errors))


def unprocessable() -> ApiError:
    """422 of a JSON patch that cannot be applied."""
    message = "the server rejected our request due to an error in our request"
    return ApiError(422, "Invalid", message)


def version_on_create() -> ApiError:
    """500 without a reason: a new object has a resourceVersion."""
    return ApiError(500, "", "resourceVersion should not be set on objects to be created")


# -- violations of fields --------------------------------------------------------------------------


OMITTED: Final = object()
"""A value that is not shown: an object or a list."""
NOWHERE = "<nil>"
"""The field of a violation that concerns the whole object."""


def render_value(value: Any) -> str:
    """Render a value as in Kubernetes' messages: ``"a"``, ``3``, ``true``, ``{"a":1}``."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _shown(value: Any) -> str:
    return "" if value is OMITTED else f"{render_value(value)}: "


def required(field: str, why: str = "") -> FieldError:
    """A required field is missing."""
    return FieldError("FieldValueRequired", field, f"Required value: {why}".removesuffix(": "))


def invalid_value(field: str, value: Any, why: str) -> FieldError:
    """A value is invalid."""
    return FieldError("FieldValueInvalid", field, f"Invalid value: {_shown(value)}{why}")


def wrong_type(field: str, found: str, why: str) -> FieldError:
    """A value has the wrong JSON type; ``found`` is the type that was sent."""
    return FieldError("FieldValueTypeInvalid", field, f'Invalid value: "{found}": {why}')


def not_supported(field: str, value: Any, supported: Sequence[Any]) -> FieldError:
    """A value is not in its enumeration."""
    listed = ", ".join(
        render_value(one if isinstance(one, str) else render_value(one)) for one in supported
    )
    why = f"Unsupported value: {render_value(value)}: supported values: {listed}"
    return FieldError("FieldValueNotSupported", field, why)


def duplicate(field: str, value: Any) -> FieldError:
    """A value occurs more than once."""
    shown = f"Duplicate value: {_shown(value)}".removesuffix(": ")
    return FieldError("FieldValueDuplicate", field, shown)


def forbidden_field(field: str, why: str) -> FieldError:
    """A field may not be set, or not be changed in this way."""
    return FieldError("FieldValueForbidden", field, f"Forbidden: {why}")


def too_long(field: str, limit: int) -> FieldError:
    """A string is too long."""
    return FieldError("FieldValueTooLong", field, f"Too long: may not be more than {limit} bytes")


def too_many(field: str, count: int, limit: int) -> FieldError:
    """A list or map has too many items."""
    items = "item" if limit == 1 else "items"
    why = f"Too many: {count}: must have at most {limit} {items}"
    return FieldError("FieldValueTooMany", field, why)
