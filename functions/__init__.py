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
   The frame executes the actions, and the first failure ends the plan. There are exceptions. A `ForOne`
   has the actions on one object of many, and a `Batch` those on many such objects: a failure ends only
   the actions on its object, and is raised after the others (but lack of time ends the plan). A `Send`
   publishes messages, an `Emit` writes an Event, and an `Attempt` wraps any action: their failures are
   only logged, unless a `ForOne` or a `Require` is around them. (Plans of release_slice have ``parts``,
   a plan for each slice.)
4. ``recover`` returns the plan after a failed call, mostly one that reports an environment error on the
   object: an error that ends when a person or Google changes something, such as a quota, a permission or
   the capacity of a zone. ``None`` leaves the error to the frame. If it shows that the observation is
   stale (404, 409, 412), the frame calls ``open``, ``observe`` and ``decide`` again, until it has
   observed three times in all; ``is_first_observation`` is false then. After that, Pub/Sub retries the
   message. It also does after a transient error, such as a 503, and after a 401 or 403 that ``recover``
   has not reported. After any other error the message is acknowledged, outcome ``Refused``. If the calls
   on several objects have failed, the first error alone counts, and a resync repeats the others.
5. ``give_up`` returns a plan that reports a transient error if the message is not retried: after five
   attempts, and always for a resync, because the sweep publishes another one.

``SNAPSHOT`` is about the log line alone: it selects what of the observation is written there, without
secrets, for ``kubectl tng timeline --why``.

A variable ``known`` is a group's `Status` as it was read, with the changes of this decision so far.
Before a status is written, `readiness.conclude` computes its condition Ready from the others.
"""
