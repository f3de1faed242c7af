"""A real control plane under a story that runs on a virtual clock.

`RealCluster` stands where the embedded Kubernetes API stands in a
`local.cloud.simulation.Simulation`: it forwards every request to a real kube-apiserver
over TLS, with the caller's own credentials (ServiceAccount
tokens of the steps and the relay, bootstrap tokens and client certificates of the VMs), and records
calls as the embedded one does. RBAC, the CRD with its rules, the admission policies, NodeRestriction,
and all controllers are the real ones. A story's hours pass in seconds, so a few things are bridged;
nothing else is touched:

Times of objects (`times`)
    The server stamps ``creationTimestamp`` and ``deletionTimestamp`` in real time, while the virtual
    clock runs ahead. Answers and watch events bear the virtual time at which the object was created
    or its deletion was seen; what is sent back bears the real one again.

Rest (`rest`)
    Controllers and watches take real time. Before the answer to a write is given, all that follows
    from it has happened: a signing request has its certificate, cluster-info is signed with a new
    token and the authenticator knows it (or knows it no more), lifecycle taints fit a Node's
    conditions, what is in a terminating namespace is deleted, changed roles and definitions are in
    force, and the watches of the relay have delivered every version. So virtual time stands still
    until the cluster is at rest.

Expiry (`cluster`)
    When the virtual clock passes the expiration of a bootstrap token, the bridge writes the real
    present into its Secret. The real token cleaner deletes it.

Silence (`hearts`)
    A Node whose kubelet is silent for the real grace period (20 s here) becomes Unknown. While a
    kubelet is alive by the virtual clock, the bridge renews its Lease in real time; when it has been
    silent for the grace period of the simulation's options, virtual time stands still until the real
    node-lifecycle-controller has said so.
"""
