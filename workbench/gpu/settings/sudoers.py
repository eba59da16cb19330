"""The sudoers file that lets a user change and revert every GPU setting without a password, and
nothing else.

A `*` in a sudoers pattern would let other options through, because it also matches blanks. So the
patterns of a setting (model/setting_commands.py) say how many digits they allow. Any sudo accepts
such patterns; regular expressions need sudo 1.9.10.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from workbench.model.setting_commands import SETTINGS

SUDOERS_PATH = "/etc/sudoers.d/workbench"


def sudoers_text(
    user: str, nvidia_smi: str, tee: str, uuids: Sequence[str], files: Iterable[Sequence[str]] = ()
) -> str:
    """Return the text of a sudoers file that allows `user` to set and to revert every setting of
    these GPUs. `files` has, for each setting of the CPU cores, the files in sysfs to which a
    command writes it."""
    changes = [pattern for setting in SETTINGS.values() for pattern in setting.sudoers_patterns()]
    commands = [
        f"{nvidia_smi} -i {escape_sudoers_word(uuid)} {change}"
        for uuid in uuids
        for change in changes
    ]
    commands += [f"{tee} {' '.join(map(escape_sudoers_word, some))}" for some in files if some]
    head = f"# {SUDOERS_PATH}: {user} may change and revert GPU settings. Install it with: visudo -f {SUDOERS_PATH}"
    listed = ", \\\n    ".join(commands)
    return f"{head}\n{escape_sudoers_word(user)} ALL=(root) NOPASSWD: \\\n    {listed}\n"


def escape_sudoers_word(text: str) -> str:
    """Return `text` escaped as a word of a command in sudoers(5)."""
    return "".join("\\" + c if c in ",:=\\" else c for c in text)
