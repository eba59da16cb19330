"""A unit file for a systemd service that runs the server."""

from __future__ import annotations

from workbench.model.errors import InputError
from workbench.model.findings import Level
from workbench.model.systemd_text import double_dollars, escape_for_unit_quotes, quote_argument
from workbench.recipes.launch import Launch, Secret, Word
from workbench.recipes.recipe import Notes, shorten_value


def systemd_unit_text(launch: Launch, notes: Notes) -> str:
    """Return the text of the unit file. Raises InputError if the working directory is not an
    absolute path."""
    # at the end of a line, it continues in the next one
    title = shorten_value(launch.title).rstrip("\\")
    lines = ["[Unit]", f"Description={_escape_percent_signs(title)}"]
    lines += [
        "Wants=network-online.target",
        "After=network-online.target",
        "",
        "[Service]",
        "Type=exec",
    ]
    if launch.workdir:
        if (
            not launch.workdir.startswith("/")
            or "\n" in launch.workdir
            or launch.workdir.endswith("\\")
        ):
            raise InputError(
                f"systemd needs an absolute working directory; the plan has {launch.workdir!r}, a "
                "relative path"
            )
        lines.append(f"WorkingDirectory={_escape_percent_signs(launch.workdir)}")
    lines += [
        f"Environment={quote_argument(f'{name}={text}')}" for name, text in launch.env.items()
    ]
    if launch.secrets:
        file = f"/etc/workbench/{launch.name}.env"
        lines.append(f"EnvironmentFile={_escape_percent_signs(file)}")
        names = ", ".join(launch.secrets)
        fix = f"write the file {file} with mode 0600, one NAME=value per line: {names}"
        notes.add(Level.WARN, "secret", f"the unit reads {names} from {file}", fix=fix)
    if launch.open_files:
        lines.append(f"LimitNOFILE={launch.open_files}")
    program = launch.argv[0]
    if isinstance(program, str) and not program.startswith("/"):
        text = f"systemd looks for {program} in its own directories, not in those of your shell"
        notes.add(
            Level.WARN,
            "relative-program",
            text,
            fix="name the program with --executable /full/path",
        )
    lines.append(f"ExecStart={' '.join(map(_quote_word_for_exec_start, launch.argv))}")
    return (
        "\n".join([*lines, "Restart=on-failure", "", "[Install]", "WantedBy=multi-user.target"])
        + "\n"
    )


def _quote_word_for_exec_start(word: Word) -> str:
    """Return `word`, one argument of a command line, quoted for ExecStart in a unit file. Dollar
    signs are doubled, and a secret becomes ${VARIABLE}."""
    if isinstance(word, Secret):
        return f'"{double_dollars(escape_for_unit_quotes(word.prefix))}${{{word.variable}}}"'
    return quote_argument(double_dollars(word))


def _escape_percent_signs(text: str) -> str:
    return text.replace("%", "%%")
