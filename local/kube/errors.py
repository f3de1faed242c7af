"""What an API server says when it refuses: the `Status` object, in Kubernetes' own words.

Each constructor below stands for one kind of refusal; nothing else in this package makes up a code
or a reason. The words are those of k8s.io/apimachinery (api/errors, util/validation/field).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class FieldError:
    """One finding about one field of an object, as it stands among the causes of a 422."""

    reason: str
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class ApiError(Exception):
    """A refusal, as a client receives it.

    ``reason`` is empty where Kubernetes gives none. ``details`` is the Status object's field of that
    name (name, group, kind, uid, causes, retryAfterSeconds), which some refusals bear empty and
    some not at all; ``metadata`` is its field of that name; ``headers`` go out with the answer.
    """

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = None if details is None else dict(details)
        self.headers = dict(headers or {})
        self.metadata = dict(metadata or {})

    def warn(self, warnings: Sequence[str]) -> None:
        """Tell besides what was found before the refusal."""
        if warnings:
            self.headers.setdefault("Warning", render_warnings(warnings))

    def status(self) -> dict[str, Any]:
        """The Status object that is the answer's body."""
        status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": self.metadata,
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            status["reason"] = self.reason
        if self.details is not None:
            status["details"] = self.details
        status["code"] = self.code
        return status


def render_warnings(warnings: Sequence[str]) -> str:
    """The Warning header."""
    return ", ".join(f"299 - {json.dumps(text)}" for text in warnings)


def split_resource(qualified: str) -> tuple[str, str]:
    """``widgets.example.com`` is (``widgets``, ``example.com``), ``nodes`` is (``nodes``, ``""``).

    The same holds for kinds: ``Widget.example.com``.
    """
    plural, _, group = qualified.partition(".")
    return plural, group


def _named(qualified: str, name: str, **more: Any) -> dict[str, Any]:
    plural, group = split_resource(qualified)
    details = {"name": name, "group": group, "kind": plural, **more}
    return {key: value for key, value in details.items() if value}


def _quoted(qualified: str, name: str) -> str:
    return f'{qualified} "{name}"' if name else qualified


def bad_request(message: str) -> ApiError:
    """400: what was sent cannot be read, or contradicts the URL."""
    return ApiError(400, "BadRequest", message)


def unauthorized() -> ApiError:
    """401: credentials were sent, and nobody knows them."""
    return ApiError(401, "Unauthorized", "Unauthorized")


def forbidden(
    qualified: str, name: str, why: str, causes: Sequence[FieldError] | None = None
) -> ApiError:
    """403: ``why`` is the end of the sentence, as in ``User "u" cannot get resource ...``."""
    return ApiError(
        403,
        "Forbidden",
        f"{_quoted(qualified, name)} is forbidden: {why}",
        _named(qualified, name, causes=_causes(causes or ())),
    )


def forbidden_path(why: str) -> ApiError:
    """403 for a URL that is no resource."""
    return ApiError(403, "Forbidden", f"forbidden: {why}", {})


def not_found(qualified: str, name: str) -> ApiError:
    """404: the resource is served, the object is not there."""
    return ApiError(404, "NotFound", f'{qualified} "{name}" not found', _named(qualified, name))


class UnknownPath(ApiError):
    """404 of a URL that nothing is served under; many are answered in plain text."""

    TEXT = "404 page not found\n"

    def __init__(self) -> None:
        super().__init__(404, "NotFound", "the server could not find the requested resource", {})


def method_not_allowed() -> ApiError:
    """405: the resource exists and lacks this verb."""
    return ApiError(
        405,
        "MethodNotAllowed",
        "the server does not allow this method on the requested resource",
        {},
    )


def not_supported_verb(verb: str, qualified: str) -> ApiError:
    """405 of a subresource of a custom resource."""
    return ApiError(
        405,
        "MethodNotAllowed",
        f'{verb} is not supported on resources of kind "{qualified}"',
        _named(qualified, ""),
    )


def not_acceptable(served: Sequence[str]) -> ApiError:
    """406: none of the media types asked for can be had."""
    return ApiError(
        406,
        "NotAcceptable",
        f"only the following media types are accepted: {', '.join(served)}",
    )


def not_acceptable_form(message: str) -> ApiError:
    """406: a list in the form of an object, or the other way round."""
    return ApiError(406, "NotAcceptable", message)


def unsupported_media_type(accepted: Sequence[str], hint: str = "") -> ApiError:
    """415: the body is in a form that is not read here; ``hint`` follows the sentence."""
    return ApiError(
        415,
        "UnsupportedMediaType",
        "the body of the request was in an unknown format - accepted media types include: "
        + ", ".join(accepted)
        + hint,
    )


def unknown_patch_type() -> ApiError:
    """415: a patch of a built-in object in a form that is none of the four."""
    return ApiError(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})


def already_exists(qualified: str, name: str) -> ApiError:
    """409: an object of this name is there."""
    return ApiError(
        409, "AlreadyExists", f'{qualified} "{name}" already exists', _named(qualified, name)
    )


def conflict(qualified: str, name: str, why: str) -> ApiError:
    """409: a precondition does not hold."""
    return ApiError(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {qualified} "{name}": {why}',
        _named(qualified, name),
    )


def uid_conflict(qualified: str, key: tuple[str, str], wanted: str, found: str) -> ApiError:
    """409 of a PUT that is meant for an object of another uid."""
    plural, group = split_resource(qualified)
    path = "/".join(part for part in (group, _IN_STORAGE.get(plural, plural), *key) if part)
    return conflict(
        qualified,
        key[1],
        f"StorageError: invalid object, Code: 4, Key: /registry/{path}, ResourceVersion: 0, "
        f"AdditionalErrorMsg: Precondition failed: UID in precondition: {wanted}, UID in object "
        f"meta: {found}",
    )


_IN_STORAGE = {"nodes": "minions"}
"""Names of old that etcd still keeps objects under."""

MODIFIED = (
    "the object has been modified; please apply your changes to the latest version and try again"
)


class Expired(ApiError):
    """410: the version asked for is no longer known."""

    def __init__(self, message: str, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(410, "Expired", message, metadata=metadata)


def too_old_list() -> ApiError:
    """410 of a list at a version that is forgotten."""
    return Expired("The resourceVersion for the provided list is too old.")


def too_old_token(token: str) -> ApiError:
    """410 of a page of a list that is forgotten; ``token`` goes on with what is there now."""
    return Expired(
        "The provided continue parameter is too old to display a consistent list result. You can "
        "start a new list without the continue parameter, or use the continue token in this "
        "response to retrieve the remainder of the results. Continuing with the provided token "
        "results in an inconsistent list - objects that were created, modified, or deleted between "
        "the time the first chunk was returned and now may show up in the list.",
        {"continue": token},
    )


def too_old(asked: int, oldest: int) -> ApiError:
    """410 of a watch that begins before what is remembered."""
    return Expired(f"too old resource version: {asked} ({oldest})")


def invalid(qualified_kind: str, name: str, errors: Sequence[FieldError]) -> ApiError:
    """422: the object was understood and is not valid. ``qualified_kind``: ``Widget.example.com``.

    Raises `ValueError` without errors: an object is not invalid for nothing.
    """
    if not errors:
        raise ValueError("an invalid object needs at least one field error")
    joined = str(errors[0]) if len(errors) == 1 else f"[{', '.join(map(str, errors))}]"
    return ApiError(
        422,
        "Invalid",
        f'{qualified_kind} "{name}" is invalid: {joined}',
        _named(qualified_kind, name, causes=_causes(errors)),
    )


def unprocessable() -> ApiError:
    """422 of a JSON patch that cannot be carried out."""
    return ApiError(
        422, "Invalid", "the server rejected our request due to an error in our request", {}
    )


def too_large_resource_version(asked: int, current: int) -> ApiError:
    """504: a version from the future."""
    return ApiError(
        504,
        "Timeout",
        f"Timeout: Too large resource version: {asked}, current: {current}",
        {
            "causes": [
                {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
            ],
            "retryAfterSeconds": 1,
        },
    )


def _causes(errors: Sequence[FieldError]) -> list[dict[str, str]]:
    return [
        {"reason": error.reason, "message": error.message, "field": error.field} for error in errors
    ]


def render_value(value: Any) -> str:
    """A value as Kubernetes prints it within a message: ``"a"``, ``3``, ``true``, ``{"a":1}``."""
    if value is None:
        return "null"
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def required(field: str, why: str = "") -> FieldError:
    """A field that must be there."""
    return FieldError("FieldValueRequired", field, f"Required value: {why}".removesuffix(": "))


def version_on_create() -> ApiError:
    """500 without a reason: a new object that claims to have been stored already."""
    return ApiError(500, "", "resourceVersion should not be set on objects to be created")


def nameless(name: str) -> ApiError:
    """400 of a body that does not say the name that the URL says."""
    return bad_request(
        f"the name of the object ({name} based on URL) was undeterminable: name must be provided"
    )


def name_mismatch(found: str, wanted: str) -> ApiError:
    """400 of a body that says another name than the URL."""
    return bad_request(
        f"the name of the object ({found}) does not match the name on the URL ({wanted})"
    )


def namespace_mismatch() -> ApiError:
    """400 of a body that says another namespace than the URL."""
    return bad_request(
        "the namespace of the provided object does not match the namespace sent on the request"
    )


def invalid_value(field: str, value: Any, why: str) -> FieldError:
    """A value that is wrong, and why."""
    return FieldError("FieldValueInvalid", field, f"Invalid value: {_shown(value)}{why}")


def invalid_somewhere(why: str) -> FieldError:
    """A part that is wrong, when go-openapi does not say which, but in the message."""
    return FieldError("FieldValueInvalid", NOWHERE, f'Invalid value: "": {why}')


class _Omitted:
    """A value that is not shown: an object or a list."""


OMITTED: Final = _Omitted()
NOWHERE = "<nil>"
"""The field of a finding about the object as a whole."""


def _shown(value: Any) -> str:
    return "" if value is OMITTED else f"{render_value(value)}: "


def wrong_type(field: str, found: str, why: str) -> FieldError:
    """A value of the wrong JSON type; ``found`` is the type that was sent."""
    return FieldError("FieldValueTypeInvalid", field, f'Invalid value: "{found}": {why}')


def not_supported(field: str, value: Any, supported: Sequence[Any]) -> FieldError:
    """A value outside its enumeration."""
    listed = ", ".join(
        render_value(one if isinstance(one, str) else render_value(one)) for one in supported
    )
    return FieldError(
        "FieldValueNotSupported",
        field,
        f"Unsupported value: {render_value(value)}: supported values: {listed}",
    )


def duplicate(field: str, value: Any) -> FieldError:
    """A value that may stand only once."""
    shown = f"Duplicate value: {_shown(value)}".removesuffix(": ")
    return FieldError("FieldValueDuplicate", field, shown)


def forbidden_field(field: str, why: str) -> FieldError:
    """A field that may not be set, or not changed in this way."""
    return FieldError("FieldValueForbidden", field, f"Forbidden: {why}")


def too_long(field: str, limit: int) -> FieldError:
    """A string beyond its length."""
    return FieldError("FieldValueTooLong", field, f"Too long: may not be more than {limit} bytes")


def too_many(field: str, count: int, limit: int) -> FieldError:
    """A list or map beyond its size."""
    items = "item" if limit == 1 else "items"
    why = f"Too many: {count}: must have at most {limit} {items}"
    return FieldError("FieldValueTooMany", field, why)
