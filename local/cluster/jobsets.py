"""JobSets in a named cluster: the label of a run on them."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from local.base.cluster_client import Document
from local.cluster.manifests import LABEL, LABEL_VALUE


def label_jobset(jobset: Mapping[str, Any]) -> Document:
    """A copy of a JobSet with the label of a run, also on its Jobs and Pods."""
    labelled: Document = deepcopy(dict(jobset))
    _add_label(labelled)
    for replicated in labelled["spec"]["replicatedJobs"]:
        _add_label(replicated["template"])
        _add_label(replicated["template"]["spec"]["template"])
    return labelled


def _add_label(holder: Document) -> None:
    metadata = holder.setdefault("metadata", {})
    metadata["labels"] = {**metadata.get("labels", {}), LABEL: LABEL_VALUE}
