"""Quoting of a command line for the file of a systemd unit (systemd.service(5), "Command
lines")."""

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "%": "%%"}


def escape_for_unit_quotes(text: str) -> str:
    """Return `text` as it stands between double quotes in a unit file, with escapes for special
    characters. The quotes are not added."""
    return "".join(map(_escape_character, text))


def _escape_character(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable():
        return char
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))


def quote_argument(text: str) -> str:
    """Return `text` in double quotes as one argument in a unit file."""
    return f'"{escape_for_unit_quotes(text)}"'


def double_dollars(text: str) -> str:
    """Return `text` with each "$" doubled for a command line in ExecStart, because systemd expands
    $NAME and turns "$$" into "$"."""
    return text.replace("$", "$$")
