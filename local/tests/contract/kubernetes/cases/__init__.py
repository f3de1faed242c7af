"""What an API server does, request by request: true of the embedded one and of a real one."""

from __future__ import annotations

from local.tests.contract.kubernetes.cases.discovery import DISCOVERY
from local.tests.contract.kubernetes.cases.ending import DELETES, NAMESPACES, OWNERS
from local.tests.contract.kubernetes.cases.events import EVENTS_TOLD
from local.tests.contract.kubernetes.cases.fields import FIELDS, RULES, VALIDATION
from local.tests.contract.kubernetes.cases.groups import GROUP_LIFE, SLICE_NODES, SPECS
from local.tests.contract.kubernetes.cases.jobsets import JOBSET_LISTS, WAITING_PODS
from local.tests.contract.kubernetes.cases.joining import BOOTSTRAP_TOKENS, SIGNING_REQUESTS
from local.tests.contract.kubernetes.cases.patching import PATCH
from local.tests.contract.kubernetes.cases.reading import LISTS, SELECTORS, WATCHES
from local.tests.contract.kubernetes.cases.refusals import (
    BODIES,
    OPTIONS,
    PATCHES,
    SELECTIONS,
    URLS,
)
from local.tests.contract.kubernetes.cases.rights import NODE_RIGHTS, RIGHTS
from local.tests.contract.kubernetes.cases.writing import CREATE, DRY_RUN, STATUS, UPDATE
from local.tests.contract.kubernetes.dialogue import Case

CASES: tuple[Case, ...] = (
    *CREATE,
    *UPDATE,
    *STATUS,
    *DRY_RUN,
    *PATCH,
    *FIELDS,
    *VALIDATION,
    *RULES,
    *SELECTORS,
    *LISTS,
    *WATCHES,
    *DELETES,
    *OWNERS,
    *NAMESPACES,
    *RIGHTS,
    *NODE_RIGHTS,
    *DISCOVERY,
    *BODIES,
    *PATCHES,
    *OPTIONS,
    *SELECTIONS,
    *URLS,
    *BOOTSTRAP_TOKENS,
    *SIGNING_REQUESTS,
    *EVENTS_TOLD,
    *GROUP_LIFE,
    *SPECS,
    *SLICE_NODES,
    *WAITING_PODS,
    *JOBSET_LISTS,
)
