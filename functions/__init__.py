"""The steps, one folder each.

The life of a TPUNodeGroup is `create_resources`, `inject_token`, `approve_join`, `label_node`,
`tear_down`. `provision_slice` and `release_slice` give slices to JobSets. `sweep` and `report_leaks` run
at intervals.

The docstring of a folder has the step's triggers and what it does; the constant ``STEP`` names its
functions. `shared.frame.step` calls them in this order:

1. ``open`` finds the object that the trigger names, and builds the work: object, trigger, time, ports.
2. ``observe`` reads. Its result is a dataclass, one for each case that ``decide`` distinguishes.
3. ``decide`` is pure: from the observation and the time to a `shared.frame.plan.Plan`, whose docstring
   says in which order the actions are executed and what an error of an action ends.
4. ``recover`` gets the `CallError` that has ended ``observe`` or the plan; of several objects, one that
   is retried, if any (with ``recovers_each`` each one). It returns a plan, mostly one that reports an
   environment error on the object, or ``None``. An error without such a plan, or of it, is left to the
   frame. After 404, 409 or 412 the observation is stale: the step observes again, at most three times
   in all. After a transient error, such as a 503, or without time for a call, Pub/Sub retries the
   message, at most five times in all; a resync is left to the next one. So it does after a 401 or 403
   that nothing has reported: the object itself could not be read or written. After another error the
   message is acknowledged: ``Refused``.
5. ``give_up`` is asked after the transient error of a last attempt: its plan records the error in the
   status (``retries``) or as an Event. A resync without errors removes this entry; inject_token removes
   its own.

A step with ``snapshot`` writes its observation to the log line, without the fields that ``repr`` hides,
for ``kubectl tng timeline --why``. A variable ``known`` is a group's `Status` as it was read, with the
changes of this decision so far; `readiness.conclude` computes Ready before it is written.
"""
