"""The steps, one folder each.

The life of a TPUNodeGroup is `create_resources`, `inject_token`, `approve_join`, `label_node`,
`tear_down`. A token is made by `inject_token`, and revoked by `label_node` when its VM has joined.
`provision_slice` creates slices for JobSets, and `release_slice` deletes them. `sweep` and
`report_leaks` run at intervals.

The docstring of a folder has the step's triggers and what it does; the constant ``STEP`` names its
functions. `shared.frame.step` calls them in this order:

1. ``open`` builds the work: trigger, time, ports, and the object, if the trigger names one.
2. ``observe`` reads. Its result is a dataclass.
3. ``decide`` is pure: from the observation and the time to a `shared.frame.plan.Plan`, whose docstring
   says in which order the actions are executed and what an error of an action ends.
4. ``recover`` gets the `CallError` that has ended ``observe`` or the plan. It returns a plan, mostly one
   that reports an environment error on the object, or ``None``. If several objects have failed, it gets
   one of their errors, if possible one that is retried; with ``recovers_each`` it gets each of them.
5. ``give_up`` gets the error of a rate limit, and the transient error, or the crash, of the last attempt
   (a resync has one attempt):
   its plan records the error in the status (``retries``) or as an Event. A resync without errors removes
   this entry; inject_token removes its own.

The frame handles an error for which ``recover`` has no plan:

- After 404, 409 or 412 the observation is stale: the step observes again, at most three times in all.
- After a transient error, such as a 503, or without time for a call, Pub/Sub retries the message, at
  most five times in all; after a rate limit only if ``give_up`` has failed or returned ``None``, as for
  the end of an operation on a node pool, which the sweep does not report. A resync is not retried:
  the sweep publishes the next one. A 401 or 403 is
  retried, too: that nothing has reported it means that the object itself could not be read or written.
- After any other error the message is acknowledged: ``Refused``.

A step with ``snapshot`` writes its observation to the log line, without the fields that ``repr`` hides,
for ``kubectl tng timeline --why``. A variable ``known`` is a group's `Status` as it was read, with the
changes of this decision so far; `readiness.conclude` computes Ready before it is written.
"""
