"""The steps, one folder each.

The life of a TPUNodeGroup is `create_resources`, `inject_token`, `approve_join`, `label_node`,
`tear_down`. `provision_slice` and `release_slice` give slices to JobSets. `sweep` and `report_leaks` run
at intervals.

The docstring of a folder has the step's triggers and what it does; the constant ``STEP`` names its
functions. ``observe.py`` has what the step reads, ``decide.py`` what it does.
`shared.frame.step` calls them so:

1. ``open`` finds the object that the trigger names, and builds the work: object, trigger, time, and the
   ports for all calls (``work.gce``, ``work.cluster``, ``work.provider``).
2. ``observe`` reads. Its result is a dataclass, one for each case that ``decide`` distinguishes.
3. ``decide`` is pure: from the observation and the time to a `Plan`, an outcome and actions by phases.
   `shared.frame.plan.Plan` says when each phase is executed, and what follows an error.

   Some actions do not raise errors that a person must act on: `InsertResources` and `DeleteResources`
   record them in the entry of the resource in the status, and `Approve` writes them to the log. The
   error of an `Emit` (an Event) is logged. `Fail` raises an error of the observation.
4. ``recover`` gets the error that has ended ``observe`` or the plan. It returns another plan, mostly one
   that reports an environment error on the object: an error that ends when a person or Google changes
   something, such as a quota, a permission or the capacity of a zone. An error of this plan is left to
   the frame (in release_slice, ``recover`` gets that one, too). So is an error for which it returns
   ``None``:

   - 404, 409 and 412 show that the observation is stale. The frame calls ``open``, ``observe`` and
     ``decide`` again (``is_first_observation`` is false then), until it has observed three times in all.
     If the third is stale, too, Pub/Sub retries the message.
   - After a transient error, such as a 503, Pub/Sub retries the message, until it has made five attempts
     in all. A resync is not retried, because the sweep publishes another one: after a minute to an hour,
     depending on the object. A 401 or 403 for which ``recover`` has no plan, or whose report fails, is
     treated like a transient error.
   - After any other error the message is acknowledged, with the outcome ``Refused``.
   - If there is no time for a call, ``observe`` or the plan ends with an `OutOfTimeError`. ``recover``
     is not asked, and Pub/Sub retries the message as after a transient error.

   If the actions on several objects have failed, ``recover`` gets only the error that the plan raises,
   and that error decides whether the message is retried. A resync repeats the other actions. In
   release_slice (``recovers_each``) ``recover`` gets the error of each object.
5. ``give_up`` is asked after a transient error of the last attempt (of a resync: of the only one). It
   returns a plan that records the error in the status (``retries``) or as an Event. The frame removes
   the step's entry in ``retries`` after a resync without errors; inject_token removes its own.

A step with ``snapshot`` writes its observation to the log line, without the fields that ``repr`` hides,
for ``kubectl tng timeline --why``. A plan that ``needs_attention`` makes this line a warning.

A message is redelivered (``is_redelivered``) if Pub/Sub counts an earlier attempt that was not
acknowledged. A duplicate that Pub/Sub delivers without a count looks like a first delivery.

A variable ``known`` is a group's `Status` as it was read, with the changes of this decision so far.
Before a status is written, `readiness.conclude` computes its condition Ready from the others.
"""
