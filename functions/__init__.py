"""The steps, one file each, and two admission webhooks: `inject_env` and `admit_job`.

The life of a TPUNodeGroup is `create_resources`, `inject_token`, `approve_join`, `label_node`,
`tear_down`. `provision_slice` and `release_slice` give slices to JobSets. `sweep` and `report_leaks` run
at intervals.

A file begins with the step's triggers and what it does. Then come the dataclasses, the functions that
the constant ``STEP`` names, and their helpers, in order of use. `shared.frame.step` calls them so:

1. ``open`` finds the object that the trigger names, and builds the work: object, trigger, time, and the
   ports for all calls (``work.gce``, ``work.cluster``, ``work.provider``).
2. ``observe`` reads. Its result is a dataclass; there is one for each case that ``decide`` tells apart.
3. ``decide`` is pure: from the observation and the time to a `Plan`, an outcome and actions in order.
   The frame executes the actions. If one fails, its kind (`shared.frame.plan`) says what follows:

   - `ForOne`, the actions on one object of many: only these end, and the plan goes on. Its error is
     raised at the end of the plan.
   - `Send`, which publishes messages, `Emit`, which writes an Event, and `Attempt`, which wraps any
     other action: a failure is only logged. Two wrappers change that: in a `ForOne` it is an error of
     the object, in a `Require` it ends the plan. The function `resync` returns a `Send` in a `Require`.
   - `Batch`, a list of actions on one object each (`NamedAction`): a failure ends only one of them, and
     is raised at the end of the plan, or only logged if it is an `Attempt`. A batch is executed for as
     long as there is time. If objects are left then, a `Resume` ends the plan and publishes the message
     that continues it; without a `Resume` they are dropped.
   - Any other action: the plan ends with the error. So it does if time runs out in a `ForOne`.

   `Fail` raises an error of the observation. `ABORT_AFTER_FAILURE`, or a `Batch` with ``is_required``,
   ends the plan there if a `ForOne` or `Batch` has failed. `ObserveAgain` ends the plan, and the step
   observes and decides again. A plan of release_slice has ``parts``, a plan for each slice: a failure
   ends only its part, and ``recover`` is asked for each.
4. ``recover`` gets the error of a failed call. It returns another plan, mostly one that reports an
   environment error on the object: an error that ends when a person or Google changes something, such as
   a quota, a permission or the capacity of a zone. ``None`` leaves the error to the frame:

   - 404, 409 and 412 show that the observation is stale. The frame calls ``open``, ``observe`` and
     ``decide`` again (``is_first_observation`` is false then), until it has observed three times in all.
     If the third is stale, too, Pub/Sub retries the message.
   - After a transient error, such as a 503, Pub/Sub retries the message. So it does after a 401 or 403
     for which ``recover`` has no plan, or whose report fails.
   - After any other error the message is acknowledged, with the outcome ``Refused``.

   If the calls on several objects have failed, this is done for the first error alone. A resync repeats
   the other calls.
5. ``give_up`` returns a plan that records a transient error in the status (``retries``) or as an Event,
   if Pub/Sub does not retry the message: after five attempts, and always for a resync, because the sweep
   publishes another one.

``SNAPSHOT`` is about the log line alone: it selects what of the observation is written there, without
secrets, for ``kubectl tng timeline --why``. A plan that ``needs_attention`` makes it a warning.

A variable ``known`` is a group's `Status` as it was read, with the changes of this decision so far.
Before a status is written, `readiness.conclude` computes its condition Ready from the others.
"""
