"""TLS settings for connections to a server: trust this machine's certificates, those in a given
file or, on request, any certificate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.model.errors import InputError

if TYPE_CHECKING:
    import ssl

    from workbench.model.bench import BenchSpec


def tls_context(spec: BenchSpec) -> ssl.SSLContext:
    """Return the TLS context for the options in `spec`. Without options it trusts the certificates
    that OpenSSL trusts on this machine (including SSL_CERT_FILE and SSL_CERT_DIR). Raises
    InputError if `spec.ca_file` cannot be read or contains no certificate."""
    import ssl

    try:
        made = ssl.create_default_context(cafile=spec.ca_file or None)
    except OSError as error:  # ssl.SSLError is one
        why = (
            error.strerror
            if not isinstance(error, ssl.SSLError)
            else ("the file contains no certificate in PEM form")
        )
        raise InputError(
            f"--cacert {spec.ca_file}: {why}",
            next_step="give a PEM file with the certificate of the authority (CA) that signed the "
            "server's certificate",
        ) from None
    if spec.insecure:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    return made


def certificate_problem(error: BaseException) -> str | None:
    """Return what is wrong with the server's certificate if that caused `error`. None if the error
    has another cause."""
    import ssl

    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ssl.SSLCertVerificationError):
            return seen.verify_message or str(seen)
        seen = seen.__cause__ or seen.__context__
    return None


CERTIFICATE_ADVICE = (
    "give the file of the server's CA: --cacert FILE; or, on your own network, accept any "
    "certificate: --insecure"
)
