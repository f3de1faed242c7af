"""The Kubernetes API as the relay needs it: GET, with the answer as a stream of bytes.

The kubernetes client handles credentials, TLS and proxies; its models are not used.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus

import aiohttp
import yaml
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

_MOST_DETAIL = 500


class Refused(Exception):
    """The API server answered with an error: an HTTP status, or an ERROR event in a watch."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status} {message}")
        self.status = status


class CannotConnect(Exception):
    """The configuration of the connection to the cluster is missing or invalid."""


API_FAILURES = (Refused, CannotConnect, aiohttp.ClientError, TimeoutError, OSError, ValueError)
"""Errors of a request that are retried later, an answer that is no JSON included."""
_UNREADABLE = (ConfigException, OSError, ValueError, yaml.YAMLError, TypeError, AttributeError)
"""The client library reads a file of another shape with TypeErrors and the like."""


class KubernetesApi:
    """A connection to one cluster; `close` it at the end."""

    def __init__(self, kubeconfig: str, configuration: Configuration) -> None:
        self._kubeconfig = kubeconfig
        self._configuration = configuration
        self._client = ApiClient(configuration)
        self._client.user_agent = "tpu-functions-relay"

    @classmethod
    async def connect(cls, kubeconfig: str) -> KubernetesApi:
        """Read the configuration: a kubeconfig file, or when that is empty the pod's own.

        Nothing is asked of the cluster yet. Raises `CannotConnect`.
        """
        configuration = Configuration()
        with _cannot_connect():
            await _load(kubeconfig, configuration)
            return cls(kubeconfig, configuration)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    @asynccontextmanager
    async def get(
        self, path: str, query: Mapping[str, str], timeout: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer to a GET, its body unread.

        Raises `Refused` for anything but 200, `CannotConnect`, and what aiohttp raises on the way.
        """
        with _cannot_connect():  # the client may read the token's file, empty for a moment
            request = await self._client.param_serialize(
                "GET",
                path,
                query_params=list(query.items()),
                header_params={"Accept": "application/json"},
                auth_settings=["BearerToken"],
            )
        answer = await self._client.call_api(*request, _request_timeout=timeout)
        async with answer.response as response:
            if response.status == HTTPStatus.UNAUTHORIZED and self._kubeconfig:
                # A token of a credential plugin has run out; the next GET has a new one. A pod's
                # token is read again every minute by the client.
                with _cannot_connect():
                    await _load(self._kubeconfig, self._configuration)
            if response.status != HTTPStatus.OK:
                raise Refused(response.status, _message_of(await response.read()))
            yield response


async def _load(kubeconfig: str, configuration: Configuration) -> None:
    if kubeconfig:
        await load_kube_config(kubeconfig, client_configuration=configuration)
    else:
        load_incluster_config(configuration)


@contextmanager
def _cannot_connect() -> Iterator[None]:
    """Raise `CannotConnect` for files that are missing, empty or half-written."""
    try:
        yield
    except _UNREADABLE as error:
        raise CannotConnect(str(error)) from error


def _message_of(body: bytes) -> str:
    """What a ``Status`` says, or the first words of whatever else has come."""
    text = body.decode(errors="replace")
    try:
        status = json.loads(text)
    except ValueError:
        return text[:_MOST_DETAIL].strip()
    message = status.get("message") if isinstance(status, dict) else None
    return str(message or text)[:_MOST_DETAIL]
