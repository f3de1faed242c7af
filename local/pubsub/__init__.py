"""An embedded Pub/Sub: push and pull, at least once, with retries and dead letters.

`PubSub` is the service without a transport, on a `local.base.clock.Clock`; `local.pubsub.server`
serves it over gRPC, and `local.pubsub.push` sends pushes over HTTP.
"""

from local.pubsub.core import PubSub
from local.pubsub.subscription import Timings

__all__ = ["PubSub", "Timings"]
