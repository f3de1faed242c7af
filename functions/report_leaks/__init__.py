"""report_leaks: once an hour, report leaked and idle slices. The step deletes nothing.

Trigger: a message of the sweep, in one minute of each hour.

A slice is leaked if its resources on Compute Engine have this cluster's ownership mark and its group
does not exist, is being deleted without this system's finalizer, or is in another project, zone or
region. That happens if a user has removed the finalizer or edited the spec, or if a process was frozen
for minutes before an insert, which then took effect after the group's deletion.

The step lists three kinds of resources in each project, and the groups. A slice that looks leaked is
reported if it has a resource that is older than an hour, and still exists when it is read again: at most
ten in a run, the oldest first. The log line counts the rest.

A node pool is leaked if it has TPUs and the name of a slice, and its labels are gone, which say whose it
is: somebody has replaced them.

A Node is reported, in one warning for all, if it is an hour old, has the label or a name of a group's
Node, and that group does not exist: its VM has registered it after the group's deletion, or somebody has
removed the group's finalizer, or added one to the Node.

A slice is idle if no Pod holds a chip of its Nodes. The step records since when in the status of its
TPUNodeGroup, and reports it an hour later (`idle`).
"""

from functions.report_leaks import decide, observe
from shared.frame.step import Step, open_work
from shared.triggers import routes

# Nothing recovers: after a transient error the message is retried, and the step runs again in an hour.
STEP = Step(routes.REPORT_LEAKS, open_work, observe.observe, decide.decide)
