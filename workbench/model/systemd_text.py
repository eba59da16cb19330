"""Quoting of a command line for the file of a systemd unit (systemd.service(5), "Command lines")."""

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "%": "%%"}


def escaped(text: str) -> str:
    """Return `text` with escapes for special characters, for use between double quotes in a unit
    file."""
    return "".join(
        _ESCAPES.get(char) or (char if char.isprintable() else _hexadecimal(char)) for char in text
    )


def _hexadecimal(char: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))


def quoted(text: str) -> str:
    """Return `text` in double quotes as one argument in a unit file."""
    return f'"{escaped(text)}"'


def literal(text: str) -> str:
    """Return `text` with each "$" doubled for a command line in ExecStart, because systemd expands
    $NAME and turns "$$" into "$"."""
    return text.replace("$", "$$")
