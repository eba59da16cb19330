"""Words of a command line in the file of a systemd unit (systemd.service(5), "Command lines")."""

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "%": "%%"}


def escaped(text: str) -> str:
    """Return `text` with the escapes that it needs between double quotes in a unit file."""
    return "".join(_ESCAPES.get(char) or (char if char.isprintable() else _hexadecimal(char)) for char in text)


def _hexadecimal(char: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))


def quoted(text: str) -> str:
    """Return `text` as one word of a unit file."""
    return f'"{escaped(text)}"'


def literal(text: str) -> str:
    """Return a word of ExecStart that means `text`, because systemd replaces $NAME, and $$ by $."""
    return text.replace("$", "$$")
