"""The sudoers file that lets a user change and revert every GPU setting without a password, and nothing else.

A `*` in a sudoers pattern would let other options through, because it also matches blanks. So the patterns of a setting
(model/setting_commands.py) say how many digits they allow. Any sudo accepts such patterns; regular expressions need
sudo 1.9.10.
"""

from __future__ import annotations

from collections.abc import Sequence

from workbench.model.setting_commands import GOVERNOR_FILES, SETTINGS

PATH = "/etc/sudoers.d/workbench"


def sudoers(
    user: str, nvidia_smi: str, tee: str, uuids: Sequence[str], cores: Sequence[int] = (), sysfs: str = "/sys"
) -> str:
    """Return the text of the file, which allows `user` every set and every revert for these GPUs, and for the governor
    of these cores."""
    changes = [pattern for setting in SETTINGS.values() for pattern in setting.sudoers_patterns()]
    commands = [f"{nvidia_smi} -i {word(uuid)} {change}" for uuid in uuids for change in changes]
    if cores:
        files = [word(GOVERNOR_FILES.format(root=sysfs, cpu=cpu)) for cpu in cores]
        commands.append(f"{tee} {' '.join(files)}")
    head = f"# {PATH}: {user} may change and revert GPU settings. Install it with: visudo -f {PATH}"
    listed = ", \\\n    ".join(commands)
    return f"{head}\n{word(user)} ALL=(root) NOPASSWD: \\\n    {listed}\n"


def word(text: str) -> str:
    """Return `text` escaped as a word of a command in sudoers(5)."""
    return "".join("\\" + c if c in ",:=\\" else c for c in text)
