"""The serving certificate, read again when its files change: new connections get the new one."""

import asyncio
import ssl
from pathlib import Path

import structlog

CHECK_EVERY_S = 10.0
_LOG = structlog.get_logger()


class UnusableCertificate(Exception):
    """There is no usable certificate and key; the message names the files."""


class Certificate:
    """A certificate and its key in two files, as cert-manager and the kubelet keep them."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Read both. Raises `UnusableCertificate`."""
        self._paths = (certificate, key)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._seen = self._stamp()
        self._load()

    async def follow(self, check_every_s: float = CHECK_EVERY_S) -> None:
        """Check the files until cancelled. An unusable pair does not replace the current one."""
        while True:
            await asyncio.sleep(check_every_s)
            self.reload_if_changed()

    def reload_if_changed(self) -> bool:
        """Read the files again if they have changed. Returns whether they are used now."""
        try:
            stamp = self._stamp()
            if stamp == self._seen:
                return False
            self._load()
        except UnusableCertificate as error:
            _LOG.error(f"the certificate stays as it was: {error}")
            return False
        self._seen = stamp
        _LOG.info("the certificate was read again", file=str(self._paths[0]))
        return True

    def _load(self) -> None:
        certificate, key = self._paths
        # A pair is tried on a context of its own first: a failure must not leave half of it behind.
        try:
            for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.context):
                context.load_cert_chain(certificate, key)
        except (OSError, ValueError) as error:
            raise UnusableCertificate(f"{certificate} and {key}: {error}") from error

    def _stamp(self) -> tuple[tuple[int, int], ...]:
        try:
            found = [path.stat() for path in self._paths]
        except OSError as error:
            raise UnusableCertificate(f"{error.filename}: {error.strerror}") from error
        return tuple((one.st_ino, one.st_mtime_ns) for one in found)
