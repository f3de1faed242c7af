"""sweep: once a minute, list all groups and publish a resync for each group that needs one.

Trigger: a message of Cloud Scheduler.

The step triggers the others even if the cluster is another installation's, so that they report that and
its end. Its own outcome is then ``OtherInstallation``, which an alert counts.

Resyncs are needed because messages can be lost, and because Compute Engine logs nothing while a BULK
group waits for capacity or when its interconnect is ready. A group that is not settled gets a resync at
intervals that grow from a minute to half an hour with the time since its last progress. A settled group
gets one every hour, at a minute of its own.

A group that cannot be parsed, or on which the decision crashes, is named in the log line (``skipped``)
and stops no other.

If VMs join with tokens of this system, each run also publishes to ``approve_join`` the certificate
requests of the last 20 minutes that are pending for half a minute (the newest of each token), and those
that another approver has approved, for a report; with the setting ``JOIN_APPROVAL=external`` it does
not. It triggers the steps of JobSets each minute if these are switched on, and ``report_leaks`` once an
hour.
"""

from functions.sweep import decide, observe
from shared.frame.plan import Plan, Work
from shared.frame.step import Step, open_work
from shared.ports.errors import CallError
from shared.triggers import routes


def recover(work: Work, error: CallError) -> Plan | None:
    """Report a topic to which nothing could be published.

    The message is not retried, because a retry would publish to the other topics twice. The lost resyncs
    are made up for by the next ones of their groups. It is retried if the groups could not be listed.
    """
    if not isinstance(work.observed, observe.ObservedGroups) or work.observed.failure is not None:
        return None
    return Plan("SweptPartly", note=str(error), needs_attention=True)


STEP = Step(routes.SWEEP, open_work, observe.observe, decide.decide, recover, only_triggers=True)
