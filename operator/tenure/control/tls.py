"""The server's side of TLS: a certificate that clients pin, so its issuer and its names are theirs to judge."""

import ssl
from pathlib import Path

from tenure.model.errors import InvalidSettings


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """A context for TLS 1.2 and later with this certificate and key, both PEM.

    Raises ``InvalidSettings`` when they cannot be read, do not belong together, or the key has a password.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    problem = None
    try:
        # An empty password: without one OpenSSL would ask for it on the terminal, and wait.
        context.load_cert_chain(certificate, key, password="")
    except OSError as error:
        unreadable = not isinstance(error, ssl.SSLError)
        problem = "cannot be read" if unreadable else "are not a PEM certificate and its unencrypted key"
    if problem is not None:
        files = "--tls-cert (TENURE_SERVER_TLS_CERT) and --tls-key (TENURE_SERVER_TLS_KEY)"
        raise InvalidSettings((f"{files} {problem}",))
    return context
