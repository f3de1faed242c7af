"""Describe errors on the user's machine, and what to do about them."""

from collections.abc import Iterator
from contextlib import contextmanager

from google.auth.exceptions import GoogleAuthError

from replay.text import link
from shared.base.environment import SettingsError
from shared.base.names import MIGS, NODE_POOLS, POLICIES, TEMPLATES, VMS
from shared.frame.plan import StepRefused
from shared.ports.errors import About, CallError, OutOfTimeError
from shared.ports.kubernetes.access import AccessError


class ReplayError(Exception):
    """A command cannot be executed; the text says why and what would be valid."""


FORESEEN = (
    ReplayError,
    SettingsError,
    AccessError,
    CallError,
    OutOfTimeError,
    StepRefused,
    GoogleAuthError,
)
"""The errors that `in_plain_words` describes; any other is a bug and shows its traceback."""

_LOG_IN = "run `gcloud auth application-default login`"
_HINTS = {
    (
        "the cluster",
        0,
    ): "Check that it is running and is the current context of your kubeconfig, or "
    "name another with --context.",
    ("the cluster", 401): "Your kubeconfig's credentials are not accepted; `kubectl get "
    "tpunodegroups -A` must work with it.",
    (
        "the cluster",
        403,
    ): f"{link('docs/reference/replay.md#what-it-needs')} lists the permissions of each verb.",
    ("the cluster", 404): "Check that it is installed in this cluster: `kubectl get crd "
    "tpunodegroups.tpu.google.com`.",
    ("Pub/Sub", 403): "You need the role roles/pubsub.publisher on this topic.",
    ("subscriptions", 403): "You need the role roles/pubsub.subscriber on this subscription.",
    ("projects", 403): "To record, you need the role roles/pubsub.editor in this project.",
    ("Pub/Sub", 404): "There is no such topic or subscription; PUBSUB_PROJECT and TOPIC_PREFIX "
    "must be those of the installation.",
    ("Compute Engine", 403): "You need the role roles/compute.viewer in the group's project.",
    ("Cloud Logging", 403): "You need the role roles/logging.viewer in each project that is read.",
    ("Cloud Logging", 429): "Other clients use up the project's quota; try again in a minute.",
    ("GKE", 403): "You need the role roles/container.clusterViewer in the cluster's project.",
}
"""Hints by status code and by what the call was about, or else by its API."""
_HINTS_OF_GOOGLE = {
    0: f"Check that this machine can reach it. If credentials are missing, {_LOG_IN}.",
    401: f"Your credentials are not accepted; {_LOG_IN}.",
    503: f"If the credentials are the reason, {_LOG_IN}.",
}
"""Hints for any other call to an API of Google's."""

_APIS = {
    **dict.fromkeys(("topics", "subscriptions", "projects"), "Pub/Sub"),
    **dict.fromkeys((POLICIES, TEMPLATES, MIGS, VMS), "Compute Engine"),
    NODE_POOLS: "GKE",
    "entries": "Cloud Logging",
    "": "Google",
}
"""The APIs by the kinds that calls are about (`About`). Other kinds are the cluster's."""


@contextmanager
def as_call_errors(call: str, about: About) -> Iterator[None]:
    """Raise the errors of Google's clients as `CallError`."""
    from google.api_core.exceptions import GoogleAPICallError, RetryError

    try:
        yield
    except (GoogleAPICallError, RetryError, GoogleAuthError) as error:
        http = int(getattr(error, "code", None) or 0)
        code = "refused" if http else "unreachable"
        raise CallError(call, http, code, str(error), about) from error


def in_plain_words(error: Exception) -> str:
    """Describe an error in the API's words, with what the user can do."""
    if isinstance(error, GoogleAuthError):
        return f"there are no valid Google credentials: {error} ({_LOG_IN})"
    if not isinstance(error, CallError):
        return str(error)
    api = _APIS.get(error.about.kind, "the cluster")
    is_anonymous = api == "the cluster" and "system:anonymous" in error.message
    http = (
        401 if is_anonymous else error.http
    )  # as without a credential plugin that is missing here
    hint = _HINTS.get((error.about.kind, http)) or _HINTS.get((api, http), "")
    if not hint and error.about.kind in _APIS:
        hint = _HINTS_OF_GOOGLE.get(error.http, "")
    status = f"{error.http} " if error.http else ""
    said = f"the call `{error.call}` to {api} failed: {status}{error.code}: {error.message}"
    return f"{said.rstrip('.')}. {hint}".rstrip()
