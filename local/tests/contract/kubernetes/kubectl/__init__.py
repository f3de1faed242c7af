"""kubectl's everyday commands, with the same output on the embedded API and on a real one."""

from local.tests.contract.kubernetes.kubectl.runs import RUNS as RUNS
from local.tests.contract.kubernetes.kubectl.runs import Run as Run
from local.tests.contract.kubernetes.kubectl.terminal import Terminal as Terminal
