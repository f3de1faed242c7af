"""approve_join: approve a certificate request for a VM's Node if it was made with that VM's token.

Triggers: messages that name CertificateSigningRequests of kubelets that use this system's bootstrap
tokens:

- The relay publishes new requests, and the sweep those that are still pending. Both also publish
  requests that another approver has approved, which are only logged: such an approver compares no
  tokens, so with it the token of any VM is enough for any Node's certificate.
- The step itself publishes the requests for which it had no time.

inject_token makes a token only for a member of a group's MIG, and the API server adds the token's owner,
this VM's name and id, to each request (`SigningRequest.token_vm`). A request is approved if it has
exactly the form that a kubelet sends, is for the Node of the token's owner, and this VM's metadata holds
the token.
This installation must serve the group's project, and the group must not be being deleted.

A request is denied only if it can never become valid: it has another form, or is for another Node than
its token's owner. Its token is revoked, because a denied kubelet makes a new request every 32 seconds.

Any other request stays pending, with one of these outcomes:

- ``Pending``, while the obstacle may end by itself: for example, an API is unavailable.
- ``NotApproved``, if the Node name is a VM's name with a domain, and for any obstacle that lasts longer
  than two minutes.
- ``RenewedToken``, if the VM holds another token: it makes a new request. Nothing is reported.
- ``Deleting``, if the group is being deleted.
- ``SpentToken``, if the VM has joined since its last start: its token is revoked again.

A kubelet waits 15 minutes, and a request that is older than 20 is not approved any more.

A revoked token stays in its VM's metadata, and inject_token may create its Secret again. If its holder
then makes another request of a wrong form, it is denied again.

The step writes no status, because a group's start makes as many requests as it has VMs. It triggers
label_node, which reports at the owner of the token that a request is denied or NotApproved. A request
that is denied, late, or approved by another, or whose approval the API server rejects, also gets an
Event and a log line, once an hour for each owner and cause (`actions.Report`).
"""

from functions.approve_join import decide, observe
from shared.frame.plan import Plan
from shared.frame.step import Step, open_work
from shared.node_groups.snapshot import RULES
from shared.triggers import routes

# Nothing recovers and nothing is reported: requests that could not be read or decided stay pending, and
# the sweep publishes them.
STEP = Step(
    routes.APPROVE_JOIN,
    open_work,
    observe.observe,
    decide.decide,
    give_up=lambda _work, _error: Plan("GivenUp"),
    snapshot=RULES,
)
