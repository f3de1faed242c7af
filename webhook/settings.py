"""The webhook's settings: environment variables.

The names and defaults of gke-tpu-env-injector work: its flags ``--tls-cert-file``,
``--tls-key-file`` and ``--verbose``, and its variables ``GTEI_TLS_CERT_FILE``, ``GTEI_TLS_KEY_FILE``
and ``GTEI_VERBOSE``. A flag beats a variable.
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.base.environment import Variables, read_number
from webhook.admit_job import AdmissionSettings
from webhook.inject_env import InjectionSettings
from webhook.tpu_env.variables import MAX_CONTAINERS, Ports

TRUE_WORDS = ("1", "true", "yes")
_FLAG = re.compile("true|false")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")


@dataclass(frozen=True)
class WebhookSettings:
    """Where the certificate and its key are, where to listen (an empty host: everywhere, port 0: any
    free one) and for how long after SIGTERM, how to inject and to admit Jobs."""

    certificate: Path
    key: Path
    host: str
    port: int
    drain_s: int
    is_verbose: bool
    injection: InjectionSettings
    admission: AdmissionSettings


def read_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> WebhookSettings:
    """Read flags and variables. Raises `SettingsError`; exits for unknown flags."""
    variables = Variables(environment)
    parser = argparse.ArgumentParser(
        prog="python -m webhook",
        description="Serve the admission webhook that gives TPU Pods their variables.",
    )
    parser.add_argument(
        "--tls-cert-file",
        type=Path,
        default=variables.get("GTEI_TLS_CERT_FILE") or "/etc/tls/tls.crt",
        metavar="FILE",
        help="serving certificate in PEM form, read again on change (GTEI_TLS_CERT_FILE; %(default)s)",
    )
    parser.add_argument(
        "--tls-key-file",
        type=Path,
        default=variables.get("GTEI_TLS_KEY_FILE") or "/etc/tls/tls.key",
        metavar="FILE",
        help="its key (GTEI_TLS_KEY_FILE; %(default)s)",
    )
    parser.add_argument(
        "--verbose",
        nargs="?",  # Go's flags, which the former webhook has, accept --verbose=true
        const="true",
        default=variables.get("GTEI_VERBOSE"),
        metavar="true",
        help="log every review, not only those with a patch, a warning or a refusal (GTEI_VERBOSE)",
    )
    options = parser.parse_args(arguments)
    settings = WebhookSettings(
        certificate=options.tls_cert_file,
        key=options.tls_key_file,
        host=variables.get("HOST"),
        port=read_number(variables, "PORT", 8443, range(65536), "a port, 0 to 65535"),
        drain_s=read_number(
            variables, "DRAIN_SECONDS", 10, range(10**6), "a whole number of seconds"
        ),
        is_verbose=options.verbose.lower() in TRUE_WORDS,
        injection=read_injection(environment),
        admission=read_admission(environment),
    )
    variables.check()
    return settings


def read_injection(environment: Mapping[str, str]) -> InjectionSettings:
    """The settings of inject_env. Raises `SettingsError`."""
    variables = Variables(environment)
    last = 65536 - MAX_CONTAINERS  # the containers of a Pod have the following ports

    def read_port(name: str, default: int) -> int:
        return read_number(variables, name, default, range(1, last + 1), f"a port, 1 to {last}")

    process = read_port("INJECT_PROCESS_PORT", Ports.process)
    coordinator = read_port("INJECT_JAX_COORDINATOR_PORT", Ports.jax_coordinator)
    if process == coordinator:
        variables.reject(
            "INJECT_PROCESS_PORT", f"another port than INJECT_JAX_COORDINATOR_PORT, {coordinator}"
        )
    is_strict = _read_flag(variables, "INJECT_STRICT")
    variables.check()
    return InjectionSettings(is_strict, Ports(process, coordinator))


def read_admission(environment: Mapping[str, str]) -> AdmissionSettings:
    """The settings of admit_job. Raises `SettingsError`."""
    variables = Variables(environment)
    is_forced = _read_flag(variables, "FORCE_ON_DEMAND")
    meaning = "the value of a label: at most 63 letters, digits, dashes, dots and underscores"
    hint = variables.match("RESERVATION_LOCATION_HINT", meaning, _LABEL_VALUE, "")
    variables.check()
    return AdmissionSettings(is_forced, hint)


def _read_flag(variables: Variables, name: str) -> bool:
    return variables.match(name, "true or false", _FLAG, "false") == "true"
