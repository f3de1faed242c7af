"""An embedded Pub/Sub: push and pull, at least once, with retries, dead letters and filters.

`core.PubSub` is the service without a transport, on a `local.clock.Clock`; `server` puts gRPC in
front of it, as google-cloud-pubsub speaks it, and `push` carries pushes over HTTP.
"""
