"""The behaviour of an API server, request by request, embedded or real."""

from __future__ import annotations

from local.tests.contract.kubernetes.cases.account_tokens import ACCOUNT_TOKENS
from local.tests.contract.kubernetes.cases.bad_requests import (
    BODIES,
    OPTIONS,
    PATCHES,
    SELECTIONS,
    URLS,
)
from local.tests.contract.kubernetes.cases.deleting import (
    DELETES,
    NAMESPACES,
    OWNERS,
    PODS_OF_NODES,
)
from local.tests.contract.kubernetes.cases.discovery import DISCOVERY
from local.tests.contract.kubernetes.cases.events import EVENT_CASES
from local.tests.contract.kubernetes.cases.fields import FIELDS, RULES, VALIDATION
from local.tests.contract.kubernetes.cases.jobsets import JOBSET_LISTS, PENDING_PODS
from local.tests.contract.kubernetes.cases.joining import BOOTSTRAP_TOKENS, SIGNING_REQUESTS
from local.tests.contract.kubernetes.cases.patching import PATCH
from local.tests.contract.kubernetes.cases.permissions import NODE_PERMISSIONS, PERMISSIONS
from local.tests.contract.kubernetes.cases.reading import LISTS, SELECTORS, WATCHES
from local.tests.contract.kubernetes.cases.scaling import SCALES
from local.tests.contract.kubernetes.cases.writing import CREATE, DRY_RUN, STATUS, UPDATE
from local.tests.contract.kubernetes.dialogue import Case

CASES: tuple[Case, ...] = (
    *CREATE,
    *UPDATE,
    *STATUS,
    *DRY_RUN,
    *PATCH,
    *SCALES,
    *FIELDS,
    *VALIDATION,
    *RULES,
    *SELECTORS,
    *LISTS,
    *WATCHES,
    *DELETES,
    *OWNERS,
    *PODS_OF_NODES,
    *NAMESPACES,
    *PERMISSIONS,
    *NODE_PERMISSIONS,
    *ACCOUNT_TOKENS,
    *DISCOVERY,
    *BODIES,
    *PATCHES,
    *OPTIONS,
    *SELECTIONS,
    *URLS,
    *BOOTSTRAP_TOKENS,
    *SIGNING_REQUESTS,
    *EVENT_CASES,
    *PENDING_PODS,
    *JOBSET_LISTS,
)
