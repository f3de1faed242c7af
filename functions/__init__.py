"""The steps, one folder each.

The life of a TPUNodeGroup is `create_resources`, `inject_token`, `approve_join`, `label_node`,
`tear_down`. A token is made by `inject_token`, and revoked by `label_node` when its VM has joined.
`provision_slice` creates slices for JobSets, and `release_slice` deletes them. `sweep` and
`report_leaks` run at intervals.

The docstring of a folder has the step's triggers and what it does; the constant ``STEP`` names its
functions. `shared.frame.step.Step` says what each of them does: ``open``, ``observe``, ``decide``, and
for errors ``recover`` and ``give_up``. `shared.frame.plan.Plan` says in which order the actions of a
decision are executed, and what an error of one ends.

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
