"""The Terraform module against the product that it deploys and the providers that apply it."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from datetime import UTC, datetime
from typing import Any

import pytest

from local.cloud import simulation
from local.kube.certificates import CertificateAuthority
from relay.kinds import TRIGGERED_STEPS
from relay.metrics import DESCRIPTIONS
from relay.settings import VARIABLES as RELAY_VARIABLES
from relay.watching.watch import Timing
from shared import settings
from shared.base.names import topic_id
from shared.frame.step import MAX_OBSERVATIONS, SECONDS_FOR_CALLS
from shared.triggers.decode import decode
from shared.triggers.message import SWEEP_KIND
from shared.triggers.routes import ROUTES, SLICE_STEPS, STEPS
from tests.unit.infra.terraform.terraform_module import (
    MODULE,
    ROOT,
    list_errors,
    read,
    read_permissions,
    read_schemas,
    read_settings,
)

module = read()
SCHEMAS = read_schemas()
PERMISSIONS = read_permissions()
EXAMPLES = sorted(path.name for path in (MODULE / "examples").iterdir())
A_PREFIX = "tpu-functions-"
FUNCTION = "google_cloudfunctions2_function.step"
SUBSCRIPTION = "google_pubsub_subscription.step"


# the providers


@pytest.mark.parametrize("address", module.blocks)
def test_every_argument_is_known_to_its_provider_and_none_is_missing(address: str) -> None:
    block = module.blocks[address]
    assert list(list_errors(block.body, SCHEMAS[block.mode, block.type])) == []


def test_the_schemas_have_only_types_that_the_module_uses() -> None:
    assert set(SCHEMAS) == {(block.mode, block.type) for block in module.blocks.values()}


def test_every_reference_is_declared_and_every_variable_is_used() -> None:
    declared = {f"var.{name}" for name in module.variables}
    declared |= {f"local.{name}" for name in module.locals}
    declared |= module.blocks.keys()
    referred = {address for address, _ in module.references()}
    assert referred - declared == set()
    unused = declared - referred - {f"{block.address}" for block in module.blocks.values()}
    assert unused == set()


def test_a_moved_address_has_an_existing_target() -> None:
    text = (MODULE / "moved.tf").read_text()
    moves = re.findall(r"^moved {\n  from = ([\w.]+).*\n  to   = ([\w.]+).*\n}", text, re.M)
    assert len(moves) == text.count("moved {") > 0
    for earlier, now in moves:
        assert now in module.blocks
        assert earlier == "google_monitoring_alert_policy.this" or earlier not in module.blocks


def test_every_referenced_attribute_is_in_the_schema() -> None:
    referenced = {(address, attribute) for address, attribute in module.references() if attribute}
    assert len(referenced) > 20
    for address, attribute in referenced:
        block = module.blocks[address]
        schema = SCHEMAS[block.mode, block.type]
        assert attribute in {**schema["attributes"], **schema.get("block_types", {})}, address


# steps and topics


def test_the_module_has_the_steps_of_the_product() -> None:
    found = re.search(r"for step in concat\(\[(.*?)], local.jobset_steps\)", module.locals["slugs"])
    more = re.search(r"\? \[] : \[(.*?)]", module.locals["jobset_steps"])
    assert found is not None
    assert more is not None
    assert tuple(json.loads(f"[{found[1]}]")) == STEPS
    assert tuple(json.loads(f"[{more[1]}]")) == SLICE_STEPS


@pytest.mark.parametrize(
    "address",
    [
        FUNCTION,
        SUBSCRIPTION,
        "google_pubsub_topic.step",
        "google_service_account.step",
        "google_cloud_run_service_iam_member.pusher",
        "google_pubsub_subscription_iam_member.step",
    ],
)
def test_each_step_has_such_a_resource(address: str) -> None:
    assert module[address]["for_each"] == "${local.slugs}"


def test_topics_have_the_names_that_the_product_publishes_to() -> None:
    slug = {step: step.replace("_", "-") for step in STEPS}
    assert module["google_pubsub_topic.step"]["name"] == "${local.topic_prefix}${each.value}"
    assert module.locals["topic_prefix"] == "${var.name_prefix}-"
    assert {step: A_PREFIX + slug[step] for step in STEPS} == {
        step: topic_id(A_PREFIX, step) for step in STEPS
    }


def test_all_components_have_the_same_default_prefix() -> None:
    default = module.variables["name_prefix"]["default"] + "-"
    assert default == RELAY_VARIABLES["topic_prefix"].default
    assert settings.from_environment(an_environment()).topic_prefix == default


def test_the_function_of_a_step_has_its_entry_point() -> None:
    (build,) = module[FUNCTION]["build_config"]
    assert build["entry_point"] == "${each.key}"
    # Its bytecode must not depend on the times of files, which the build sets to 1980 afterwards.
    (compiled,) = build["environment_variables"].values()
    assert datetime.fromtimestamp(int(compiled), UTC) >= datetime(1980, 1, 2, tzinfo=UTC), "a zip's"


def test_the_sinks_have_the_filters_of_the_files() -> None:
    (sink,) = (block.body for block in module.of_type("google_logging_project_sink"))
    assert sink["filter"] == "${local.filters[each.value.step]}"
    assert sink["unique_writer_identity"] is True
    assert 'file("${path.module}/filters/${name}")' in module.locals["filters"]


# delivery


def test_the_delivery_settings_are_those_of_the_simulation() -> None:
    subscription = module[SUBSCRIPTION]
    (retry,), (dead,) = subscription["retry_policy"], subscription["dead_letter_policy"]
    assert subscription["ack_deadline_seconds"] == "${local.ack_deadline_seconds}"
    assert dead["max_delivery_attempts"] == "${local.max_delivery_attempts}"
    assert module.locals["ack_deadline_seconds"] == simulation.ACK_DEADLINE_S
    assert module.locals["max_delivery_attempts"] == simulation.MAX_DELIVERY_ATTEMPTS
    backoff = (retry["minimum_backoff"], retry["maximum_backoff"])
    assert backoff == (f"{simulation.MIN_BACKOFF_S:.0f}s", f"{simulation.MAX_BACKOFF_S:.0f}s")
    name = module["google_pubsub_topic.dead_letters"]["name"]
    assert name.replace("${local.topic_prefix}", A_PREFIX) == simulation.DEAD_LETTERS


def test_a_message_is_a_dead_letter_before_the_alert_on_waiting_messages_fires() -> None:
    """One message that cannot be decoded stops no step."""
    waits = [simulation.MIN_BACKOFF_S * 2**n for n in range(simulation.MAX_DELIVERY_ATTEMPTS)]
    delivering = sum(min(one, simulation.MAX_BACKOFF_S) for one in waits[:-1])
    (limit,) = re.findall(r"(?s) waiting = \{.*?above += (\d+)", (MODULE / "alerts.tf").read_text())
    assert delivering * 1.3 < float(limit), "Pub/Sub may wait longer"


def test_no_subscription_expires_without_messages() -> None:
    subscriptions = module.of_type("google_pubsub_subscription")
    assert len(subscriptions) == 2
    assert all(one.body["expiration_policy"][0]["ttl"] == "" for one in subscriptions)


def test_pub_sub_may_forward_dead_letters_and_create_tokens() -> None:
    roles = {
        (block.type, block.body["role"])
        for block in module.blocks.values()
        if block.body.get("member") == "${local.pubsub_agent}"
    }
    assert roles == {
        ("google_pubsub_topic_iam_member", "roles/pubsub.publisher"),
        ("google_pubsub_subscription_iam_member", "roles/pubsub.subscriber"),
        ("google_service_account_iam_member", "roles/iam.serviceAccountTokenCreator"),
    }


def test_a_function_ends_before_its_message_is_delivered_again() -> None:
    (service,) = module[FUNCTION]["service_config"]
    timeout = service["timeout_seconds"]
    assert MAX_OBSERVATIONS * SECONDS_FOR_CALLS < timeout < module.locals["ack_deadline_seconds"]


def test_a_function_has_a_thread_for_each_concurrent_request() -> None:
    (service,) = module[FUNCTION]["service_config"]
    assert service["max_instance_request_concurrency"] == "${var.concurrency}"
    assert "THREADS = tostring(var.concurrency)" in service["environment_variables"]
    assert 'MALLOC_ARENA_MAX = "2"' in service["environment_variables"]


def test_the_scheduler_triggers_the_sweep_every_minute() -> None:
    job = module["google_cloud_scheduler_job.sweep"]
    (target,) = job["pubsub_target"]
    found = re.fullmatch(
        r"\$\{base64encode\(jsonencode\(\{version = (\d+), kind = \"(\w+)\"}\)\)}", target["data"]
    )
    assert found is not None
    data = json.dumps({"version": int(found[1]), "kind": found[2]}).encode()
    push = {"message": {"data": base64.b64encode(data).decode(), "messageId": "1"}}
    decoded = decode(json.dumps(push).encode(), ROUTES).trigger
    assert decoded is not None
    assert decoded.cause == SWEEP_KIND
    assert target["topic_name"] == '${google_pubsub_topic.step["sweep"].id}'
    assert (job["schedule"], simulation.SWEEP_EVERY_S) == ("* * * * *", 60.0)


def test_an_apply_keeps_an_operators_pause_of_the_sweep() -> None:
    """The provider reads ``paused`` from the job, and resumes it if the module does not name it."""
    (lifecycle,) = module["google_cloud_scheduler_job.sweep"]["lifecycle"]
    assert lifecycle["ignore_changes"] == ["paused"]


# invokers and service accounts


def test_only_pub_sub_may_call_a_function() -> None:
    (invoker,) = module.of_type("google_cloud_run_service_iam_member")
    assert invoker.body["member"] == "${google_service_account.pusher.member}"
    (push,) = module[SUBSCRIPTION]["push_config"]
    (token,) = push["oidc_token"]
    assert token["service_account_email"] == "${google_service_account.pusher.email}"
    assert token["audience"] == "${local.push_audiences[each.key]}"
    text = "".join(path.read_text() for path in MODULE.glob("*.tf"))
    assert "allUsers" not in text
    assert "allAuthenticatedUsers" not in text
    assert "event_trigger" not in text


def test_ids_of_service_accounts_fit_with_the_longest_prefix() -> None:
    (rule, _) = module.variables["name_prefix"]["validation"]
    longest = re.search(r"\[a-z0-9-\]\{1,(\d+)}", rule["condition"])
    assert longest is not None
    prefix = int(longest[1]) + 2
    steps = (step.replace("_", "-") for step in ROUTES)
    slugs = [*steps, "pusher", "builder", "relay"]
    assert prefix + 1 + max(map(len, slugs)) == 30


def test_a_destroy_deletes_the_source_and_disables_no_api() -> None:
    assert module["google_storage_bucket.source"]["force_destroy"] is True
    assert module["google_project_service.this"]["disable_on_destroy"] is False


# deployed files


def an_environment() -> dict[str, str]:
    return {"PUBSUB_PROJECT": "my-gcp-project", "KUBECONFIG": "/secrets/kubeconfig/kubeconfig"}


class RecordingEnvironment(dict[str, str]):
    """An environment that records the variables that are read."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.names: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)


def variables_in(text: str) -> set[str]:
    return set(re.findall(r"\b([A-Z][A-Z_]+) += ", text))


A_CLUSTER_OF_NODE_POOLS = {
    "JOBSET_PROVIDER": "gke",
    "GCP_PROJECT_ID": "my-gcp-project",
    "GCP_CLUSTER_LOCATION": "us-east5",
    "GCP_CLUSTER": "my-cluster",
}


def test_the_functions_read_every_variable_that_is_set() -> None:
    (service,) = module[FUNCTION]["service_config"]
    always = variables_in(service["environment_variables"])
    always |= module.locals["installation_environment"].keys()
    cluster_variables = variables_in(module.locals["cluster_environment"])
    jobsets = variables_in(module.locals["jobset_environment"])
    ca = CertificateAuthority.create(datetime.now(UTC)).certificate_pem
    environment = RecordingEnvironment(
        dict.fromkeys(always, "1")
        | A_CLUSTER_OF_NODE_POOLS
        | {
            "CLUSTER_SERVER": "https://10.128.0.2:6443",
            "CLUSTER_CA": base64.b64encode(ca.encode()).decode(),
            "CLUSTER_TOKEN": "google-id-token",
            "PUSH_SERVICE_ACCOUNT": "pusher@my-gcp-project.iam.gserviceaccount.com",
            "PUSH_VERIFICATION": "signature",
            "JOIN_APPROVAL": "external",
        }
    )
    settings.from_environment(environment)
    environment |= {"CLUSTER_TOKEN": "service-account-token", "CLUSTER_TOKEN_FILE": "/token"}
    environment["CLUSTER_AUDIENCE"] = ""
    settings.from_environment(environment)
    assert cluster_variables == {
        "KUBECONFIG",
        "CLUSTER_SERVER",
        "CLUSTER_CA",
        "CLUSTER_TOKEN",
        "CLUSTER_TOKEN_FILE",
        "CLUSTER_AUDIENCE",
    }
    assert (always | cluster_variables | jobsets) - environment.names == {
        "MALLOC_ARENA_MAX",
        "THREADS",
    }
    assert environment.names - always - cluster_variables - jobsets == {
        "COMPUTE_ENDPOINT",
        "CONTAINER_ENDPOINT",
        "PUSH_CERTIFICATES_URL",
    }


def test_the_archive_has_every_tracked_file_of_the_functions() -> None:
    found = re.search(
        r'fileset\(local.repository, "\{(.*)}/\*\*/\*\.\{(.*)}"\)', module.locals["source_files"]
    )
    assert found is not None
    folders, endings = found[1].split(","), found[2].split(",")
    assert (folders, endings) == (["functions", "shared"], ["py", "sh"])
    assert '["main.py", "requirements.txt"]' in module.locals["source_files"]
    tracked = subprocess.run(
        ["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    taken = {
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for ending in endings
        for path in (ROOT / folder).rglob(f"*.{ending}")
    }
    assert set(tracked) <= taken


# permissions


def test_the_permissions_table_has_the_steps_and_the_relay() -> None:
    assert PERMISSIONS.keys() == {*ROUTES, "relay", "token_writer", "cluster_project"}
    places = {"project", "named", "vm_service_account", "subnetwork", "stolen", "topics"}
    assert all(PERMISSIONS[step].keys() == places for step in STEPS)
    places |= {"node_service_account", "served"}
    assert all(PERMISSIONS[step].keys() == places for step in SLICE_STEPS)


def test_the_relay_may_publish_to_the_topics_that_it_writes_to() -> None:
    assert PERMISSIONS["relay"].keys() == {"stolen", "topics"}
    assert PERMISSIONS["relay"]["topics"].keys() == set(TRIGGERED_STEPS)


def test_each_permission_has_a_reason() -> None:
    for owner, places in PERMISSIONS.items():
        rows = {"": places} if owner == "cluster_project" else dict(places)
        assert re.fullmatch(r"(?s)[A-Z].{10,}\.\n?", rows.pop("stolen", "Nothing to take.")), owner
        for reasons in rows.values():
            for permission, why in reasons.items():
                assert re.fullmatch(r"[A-Z].{10,}\.", why), permission


def test_roles_grant_the_permissions_of_the_table_and_those_that_the_user_adds() -> None:
    assert module.locals["permissions"] == '${yamldecode(file("${path.module}/permissions.yaml"))}'
    role = module["google_project_iam_custom_role.step"]
    assert role["permissions"] == "${local.step_permissions[each.value.step]}"
    granted = module.locals["step_permissions"]
    served = 'local.serves_slices && contains(local.jobset_steps, step) ? "served" : "project"'
    assert f"keys(local.permissions[step][{served}])" in granted
    assert "var.extra_permissions" in granted
    assert not re.search(
        r"\b(compute|container)[.]",
        "".join(
            line.partition("#")[0]
            for name in ("iam.tf", "jobsets.tf", "network.tf")
            for line in (MODULE / name).read_text().splitlines()
            if "roles/compute.networkUser" not in line and "_compute_" not in line
        ),
    )


def test_conditional_roles_grant_the_named_permissions_of_the_table() -> None:
    role, member = (
        module[f"google_project_iam_{kind}.named"] for kind in ("custom_role", "member")
    )
    assert role["permissions"] == "${keys(local.permissions[each.value.step].named)}"
    assert role["for_each"] == member["for_each"] == "${local.named_roles}"
    assert member["role"] == "${google_project_iam_custom_role.named[each.key].name}"
    assert member["condition"][0]["expression"] == "${local.is_own_name}"


def test_no_predefined_roles_are_granted_except_these() -> None:
    text = "".join(path.read_text() for path in MODULE.glob("*.tf") if path.name != "variables.tf")
    assert set(re.findall(r'"(roles/[\w.]+)"', text)) == {
        "roles/artifactregistry.reader",
        "roles/artifactregistry.writer",
        "roles/compute.networkUser",
        "roles/iam.serviceAccountTokenCreator",
        "roles/iam.serviceAccountUser",
        "roles/iam.workloadIdentityUser",
        "roles/logging.logWriter",
        "roles/pubsub.publisher",
        "roles/pubsub.subscriber",
        "roles/run.invoker",
        "roles/secretmanager.secretAccessor",
        "roles/storage.objectViewer",
    }


def test_the_builder_has_one_role_on_the_project_and_one_under_a_condition() -> None:
    on_the_project = {
        (block.body["role"], "condition" in block.body)
        for block in module.of_type("google_project_iam_member")
        if block.body["member"] == "${google_service_account.builder.member}"
    }
    assert on_the_project == {
        ("roles/logging.logWriter", False),
        ("roles/storage.objectViewer", True),
    }


# propagation delays


def dependencies_of(address: str) -> set[str]:
    """Return the resources that a resource depends on, directly or not."""
    found: set[str] = set()
    todo = [address]
    while todo:
        text = json.dumps(module[todo.pop()], default=str)
        next_ones = {a for a in module.blocks if re.search(rf"{re.escape(a)}\b", text)} - found
        found |= next_ones
        todo += next_ones
    return found


@pytest.mark.parametrize(
    "address",
    [
        address
        for address, block in module.blocks.items()
        if block.mode == "resource"
        and block.type not in ("google_project_service", "terraform_data", "time_sleep")
        and "_iam_" not in block.type.replace("google_iam_", "")
    ],
)
def test_no_resource_is_created_before_its_api_is_enabled(address: str) -> None:
    assert "time_sleep.apis" in dependencies_of(address)


@pytest.mark.parametrize(
    "address",
    [
        address
        for address, block in module.blocks.items()
        if block.type.endswith("_iam_member")
        and re.search(
            r"google_service_account\.|local\.(relay_members|subnet_users)",
            json.dumps(block.body, default=str),
        )
    ],
)
def test_no_role_is_granted_before_the_accounts_have_propagated(address: str) -> None:
    assert "time_sleep.accounts" in dependencies_of(address)


def test_no_function_is_built_before_its_permissions_have_taken_effect() -> None:
    assert module[FUNCTION]["depends_on"] == [
        "${time_sleep.permissions}",
        "${google_secret_manager_secret_version.placeholder}",
    ]
    waited = module["time_sleep.permissions"]["triggers"]
    for address in (
        "google_project_iam_member.builder",
        "google_project_iam_member.builder_copies",
        "google_storage_bucket_iam_member.builder",
        "google_artifact_registry_repository_iam_member.builder",
        "google_secret_manager_secret_iam_member.kubeconfig",
        "google_secret_manager_secret_iam_member.token",
    ):
        assert re.search(rf"{re.escape(address)}\b", waited)


# alerts


ABSENT = "google_monitoring_alert_policy.sweep_absent"
DOWN = "google_monitoring_alert_policy.relay_down"


def test_a_sweep_that_has_not_run_for_five_minutes_is_an_alert() -> None:
    (conditions,) = module[ABSENT]["conditions"]
    (absent,) = conditions["condition_absent"]
    assert absent["duration"] == f"{5 * simulation.SWEEP_EVERY_S:.0f}s"
    assert 'step["sweep"]' in absent["filter"]
    assert '\\"2xx\\"' in absent["filter"], "a failed sweep does not count"
    (aggregations,) = absent["aggregations"]
    assert aggregations["cross_series_reducer"] == "REDUCE_SUM", (
        "the series of an old revision ends"
    )


def test_the_alert_on_the_relay_uses_metrics_of_the_relay() -> None:
    (conditions,) = module[DOWN]["conditions"]
    (rule,) = conditions["condition_prometheus_query_language"]
    known = {description.name for description in DESCRIPTIONS}
    named = set(re.findall(r"tpu_functions_relay_\w+", rule["query"]))
    assert named
    assert named <= known
    (limit,) = re.findall(r"without_contact_seconds\{[^>]*}\) > (\d+)", rule["query"])
    assert float(limit) == Timing().silent_s, "readyz has the same limit"


def test_the_alert_on_leaked_slices_finds_the_settings_in_the_cluster() -> None:
    """With PUBSUB_PROJECT as a variable, `kubectl tng` would not know the cluster of node pools."""
    lines = (MODULE / "alerts.tf").read_text().splitlines()
    (advice,) = (line for line in lines if "kubectl tng leaks" in line)
    assert "`kubectl tng leaks`" in advice


@pytest.mark.parametrize(
    "address", [block.address for block in module.of_type("google_monitoring_alert_policy")]
)
def test_an_alert_is_created_only_with_notification_channels_and_is_documented(
    address: str,
) -> None:
    block = module.blocks[address]
    assert "local.alerts" in block.body.get("count", block.body.get("for_each"))
    assert block.body["notification_channels"] == "${var.notification_channels}"
    assert block.body["documentation"][0]["content"]


# variables, outputs, examples


@pytest.mark.parametrize("name", module.variables)
def test_a_variable_is_typed_and_described(name: str) -> None:
    variable = module.variables[name]
    assert variable["type"]
    assert re.fullmatch(r"(?s)[A-Z].*\.", variable["description"])


@pytest.mark.parametrize("name", module.variables)
def test_the_error_of_an_invalid_variable_names_its_valid_values(name: str) -> None:
    for rule in module.variables[name].get("validation", ()):
        assert name in rule["error_message"]
        assert " must " in rule["error_message"]


@pytest.mark.parametrize("name", module.outputs)
def test_an_output_is_described(name: str) -> None:
    assert re.fullmatch(r"(?s)[A-Z].*\.", module.outputs[name]["description"])


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_sets_the_required_variables_and_no_unknown_ones(name: str) -> None:
    example = read(MODULE / "examples" / name)
    call = {
        key: value for key, value in example.calls["tpu_functions"].items() if key != "__is_block__"
    }
    assert call.pop("source") == "../.."
    assert call.keys() <= module.variables.keys()
    required = {key for key, variable in module.variables.items() if "default" not in variable}
    assert required <= call.keys()
    outputs = "".join(output["value"] for output in example.outputs.values())
    assert set(re.findall(r"module\.tpu_functions\.(\w+)", outputs)) <= module.outputs.keys()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_settings_for_deploy_are_those_of_the_example(name: str) -> None:
    folder = MODULE / "examples" / name
    call = read(folder).calls["tpu_functions"]
    given = {key: value for key, value in call.items() if key not in ("source", "__is_block__")}
    assert without_files(read_settings(folder / "cluster.tfvars")) == without_files(given)


def without_files(value: Any) -> Any:
    """Replace the content of files: settings contain it, an example reads it from a file."""
    if isinstance(value, dict):
        return {key: without_files(inner) for key, inner in value.items()}
    if isinstance(value, str) and (value.startswith("<<") or "file(" in value):
        return "the content of a file"
    return value


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_reference_of_an_example_is_declared(name: str) -> None:
    example = read(MODULE / "examples" / name)
    declared = {f"var.{variable}" for variable in example.variables} | example.blocks.keys()
    assert {address for address, _ in example.references()} <= declared


# the page


def test_the_page_has_the_inputs_and_outputs() -> None:
    page = (MODULE / "README.md").read_text()
    assert all(f"| `{name}` |" in page for name in (*module.variables, *module.outputs))


def test_the_page_names_each_example() -> None:
    page = (MODULE / "README.md").read_text()
    assert re.findall(r"\(examples/([\w-]+)\)", page) == [
        "self-managed-token",
        "self-managed-id-token",
        "self-managed-kubeconfig",
        "gke",
        "gke-jobsets",
    ]
    assert set(EXAMPLES) == set(re.findall(r"\(examples/([\w-]+)\)", page))
