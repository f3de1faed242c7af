"""A real control plane for a story that runs on a virtual clock.

`RealCluster` replaces the embedded Kubernetes API in a
`local.cloud.simulation.Simulation`: it forwards every request to a real kube-apiserver
over TLS, with the caller's own credentials (ServiceAccount
tokens of the steps and the relay, bootstrap tokens and client certificates of the VMs), and records
calls as the embedded one does. RBAC, the CRD with its rules, the admission policies, NodeRestriction,
and all controllers are the real ones. A story's hours pass in seconds, so the bridge adapts four
things only:

Times of objects (`times`)
    The server sets ``creationTimestamp`` and ``deletionTimestamp`` in real time, while the virtual
    clock runs ahead. Answers and watch events have the virtual time of the object's creation, or of the
    first observation of its deletion; requests to the server have the real one again.

Pending work (`pending`)
    Controllers and watches take real time. A write is answered only after all its effects: a signing
    request has its certificate, cluster-info is signed with a new token and the authenticator knows it
    (or no longer does), lifecycle taints match a Node's conditions, the objects of a terminating
    namespace are deleted, changed roles and CRDs are in effect, and the watches of the relay have
    delivered every version. Virtual time does not advance until no work is pending.

Expiry (`cluster`)
    When the virtual clock passes the expiration of a bootstrap token, the bridge writes the current
    real time into its Secret. The real token cleaner deletes it.

Heartbeats (`heartbeats`)
    A Node without heartbeats becomes Unknown after the real grace period (20 s here). While a kubelet
    sends heartbeats by the virtual clock, the bridge renews its Lease in real time; after the grace
    period of the simulation's options without a heartbeat, virtual time does not advance until the real
    node-lifecycle-controller has set Unknown.
"""
