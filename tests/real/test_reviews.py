"""The reviews that a real API server sends to the webhook, as recorded in ``tests/data/reviews``.

``RECORD_REVIEWS=1 python -m pytest tests/real/test_reviews.py`` writes the recordings again; without
it, they are compared with new reviews. tests/unit/webhook/test_reviews.py tests the
answers to them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from local.control_plane.plane import ControlPlane
from tests.real.pods import COMPONENT, OWN_MARK, apply, complete, marked
from tests.real.relay.waiting import until
from tests.real.webhooks import serving
from tests.unit.webhook.workloads import (
    Manifest,
    injecting,
    job,
    jobset_labels,
    selector,
    stateful_set,
)
from webhook.server import Webhook
from webhook.tpu_env.admission import Mutation

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("inject-env")]

RECORDINGS = Path(__file__).parents[1] / "data" / "reviews"
NAMESPACE = "recorded"
LWS = "leaderworkerset.sigs.k8s.io"
TWO_HOSTS = {"nodeSelector": selector("tpu7x", "2x2x2")}

Reviews = list[Manifest]


class Recorder(Webhook):
    """A webhook that records the reviews that it receives."""

    def __init__(self, reviews: Reviews, mutations: Mapping[str, Mutation]) -> None:
        super().__init__(mutations)
        self._reviews = reviews

    def _decide(self, mutate: Mutation, path: str, body: bytes) -> web.Response:
        self._reviews.append(json.loads(body))
        return super()._decide(mutate, path, body)


@pytest.fixture(scope="module")
def reviews(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Reviews]:
    """The reviews of all objects of `create_all`."""
    reviews: Reviews = []
    mutations = {"/mutate": injecting()}
    with serving(tmp_path_factory.mktemp("tls"), mutations, partial(Recorder, reviews)) as served:
        configuration = served.configure(COMPONENT / "webhook.yaml")
        configuration["metadata"]["name"] = "recorder.tpu-functions.dev"
        text = yaml.safe_dump(configuration)
        run(control_plane, "apply", "-f", "-", stdin=text)
        run(control_plane, "create", "namespace", NAMESPACE)
        probe = json.dumps(complete(in_namespace(stateful_set(name="probe"))))
        trial = ("create", "--dry-run=server", "-f", "-")
        until(
            lambda: bool(run(control_plane, *trial, stdin=probe) and reviews),
            "the webhook is called",
        )
        create_all(control_plane)
        until(
            lambda: len(find_all(reviews)) == len(EXPECTED), f"a review of each of {list(EXPECTED)}"
        )
        yield reviews
        run(control_plane, "delete", "-f", "-", stdin=text)
        run(control_plane, "delete", "namespace", NAMESPACE, "--wait=false")


def run(plane: ControlPlane, *arguments: str, stdin: str | None = None) -> str:
    done = plane.run_kubectl(*arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


def in_namespace(manifest: Manifest) -> Manifest:
    manifest["metadata"]["namespace"] = NAMESPACE
    return marked(manifest)


def create_all(plane: ControlPlane) -> None:
    """Create objects as users and the controllers of LeaderWorkerSet and JobSet do."""
    apply(plane, in_namespace(stateful_set(name="web", service="nginx", replicas=2, pod=TWO_HOSTS)))
    await_status(plane, "statefulset/web")
    run(plane, "-n", NAMESPACE, "set", "image", "statefulset/web", "c=train:2")
    run(plane, "-n", NAMESPACE, "scale", "statefulset/web", "--replicas=3")
    side = in_namespace(stateful_set(name="side", service="nginx", replicas=2, pod=TWO_HOSTS))
    apply(plane, side, "--server-side")
    await_status(plane, "statefulset/side")
    side["spec"]["replicas"] = 4
    side["spec"]["template"]["spec"]["nodeSelector"] = selector("tpu7x", "2x2x4")
    apply(plane, side, "--server-side")
    trial = in_namespace(stateful_set(name="trial", service="nginx", replicas=2, pod=TWO_HOSTS))
    apply(plane, trial, "--dry-run=server")
    labels = jobset_labels(2, 1)
    child = job(name="ms-slice-1", count=2, subdomain="ms", labels=labels, pod=TWO_HOSTS)
    child["spec"]["template"]["metadata"]["labels"] = labels
    apply(plane, in_namespace(child))
    apply(plane, group("llm", 0, {f"{LWS}/size": "2"}))
    annotations = {f"{LWS}/size": "2", f"{LWS}/leader-requests-tpus": "true"}
    apply(plane, group("llm-0", 1, annotations))


def await_status(plane: ControlPlane, name: str) -> None:
    """Wait until the StatefulSet's controller has written a status, as it has in the recordings."""
    observed = "--for=jsonpath={.status.observedGeneration}=1"
    run(plane, "-n", NAMESPACE, "wait", observed, name, "--timeout=60s")


def group(name: str, index: int, annotations: dict[str, str]) -> Manifest:
    """Return a StatefulSet of a LeaderWorkerSet, with the annotations of LeaderWorkerSet's webhook."""
    labels = {f"{LWS}/name": "llm", f"{LWS}/worker-index": str(index), OWN_MARK: "enabled"}
    made = stateful_set(
        name=name, service="llm", replicas=1, start=index, pod=TWO_HOSTS, template_labels=labels
    )
    made["spec"]["template"]["metadata"]["annotations"] = annotations
    made["metadata"]["namespace"] = NAMESPACE
    return made


EXPECTED: dict[str, tuple[str, str, str, bool]] = {
    "stateful-set-created": ("StatefulSet", "CREATE", "web", False),
    "stateful-set-updated": ("StatefulSet", "UPDATE", "web", False),
    "stateful-set-applied-server-side": ("StatefulSet", "CREATE", "side", False),
    "stateful-set-grown-server-side": ("StatefulSet", "UPDATE", "side", False),
    "stateful-set-dry-run": ("StatefulSet", "CREATE", "trial", True),
    "pod-of-a-stateful-set": ("Pod", "CREATE", "web-0", False),
    "job-of-a-jobset": ("Job", "CREATE", "ms-slice-1", False),
    "pod-of-a-jobsets-job": ("Pod", "CREATE", "ms-slice-1-1-", False),
    "leader-of-a-group": ("Pod", "CREATE", "llm-0", False),
    "worker-of-a-group": ("Pod", "CREATE", "llm-0-1", False),
}
"""Kind, operation, name or generateName, and whether it is a dry run."""


def find_all(reviews: Reviews) -> dict[str, Manifest]:
    """Return the first review of each."""
    found: dict[str, Manifest] = {}
    for review in reviews:
        request = review["request"]
        metadata = request["object"]["metadata"]
        name = metadata.get("name") or metadata["generateName"]
        key = (request["kind"]["kind"], request["operation"], name, request["dryRun"])
        for case, expected in EXPECTED.items():
            if key == expected:
                found.setdefault(case, review)
    return found


def paths_in(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of a document's fields; keys that contain uids are treated as one."""
    yield path
    if isinstance(value, dict):
        for key, part in value.items():
            yield from paths_in(part, f"{path}/{'uid' if 'uid' in key else key}")
    elif isinstance(value, list):
        for part in value:
            yield from paths_in(part, f"{path}/-")


@pytest.mark.parametrize("case", EXPECTED)
def test_a_recording_has_the_fields_of_an_api_servers_review(case: str, reviews: Reviews) -> None:
    review, path = find_all(reviews)[case], RECORDINGS / f"{case}.json"
    if os.environ.get("RECORD_REVIEWS"):
        path.write_text(json.dumps(review, indent=1) + "\n")
    assert set(paths_in(json.loads(path.read_text()))) == set(paths_in(review))


def test_sub_resources_are_not_reviewed(reviews: Reviews) -> None:
    """A scale has no template, and there is nothing to inject into a status."""
    assert not [review for review in reviews if review["request"].get("subResource")]
