"""Which certificates of a server are trusted: the machine's, those of a file, or (asked for) any."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.model.errors import InputError

if TYPE_CHECKING:
    import ssl

    from workbench.model.bench import BenchSpec


def context(spec: BenchSpec) -> ssl.SSLContext:
    """As the spec says; without a word, as OpenSSL on this machine does (SSL_CERT_FILE and SSL_CERT_DIR included).
    Raises InputError for a file that holds no certificates."""
    import ssl

    try:
        made = ssl.create_default_context(cafile=spec.ca_file or None)
    except OSError as error:  # ssl.SSLError is one
        why = error.strerror if not isinstance(error, ssl.SSLError) else "it holds no certificate in PEM form"
        raise InputError(f"--cacert {spec.ca_file}: {why}", next_step="give the server's CA as a PEM file") from None
    if spec.insecure:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    return made


def distrusted(error: BaseException) -> str | None:
    """What is wrong with the server's certificate, where that is the cause of `error`."""
    import ssl

    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ssl.SSLCertVerificationError):
            return seen.verify_message or str(seen)
        seen = seen.__cause__ or seen.__context__
    return None


ADVICE = "name its CA's file: --cacert FILE; or, on a network of your own, accept any certificate: --insecure"
