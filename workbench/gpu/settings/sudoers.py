"""The sudoers file that lets a user change and revert every GPU setting without a password, and nothing else.

A `*` in a sudoers pattern would let other options through, because it also matches blanks. So each pattern below says
how many digits it allows. Any sudo accepts such patterns; regular expressions need sudo 1.9.10.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from workbench.model.setting_commands import GOVERNOR_FILES

PATH = "/etc/sudoers.d/workbench"
DIGIT = "[0-9]"
# Lengths of the numbers, before and after the point, that a command may have.
POWER_W = [(whole, part) for whole in (2, 3, 4) for part in (0, 1, 2)]
CLOCK_MHZ = {"gpu": ((1, 3, 4), (3, 4)), "memory": ((1, 3, 4, 5), (3, 4, 5))}


def sudoers(
    user: str, nvidia_smi: str, tee: str, uuids: Sequence[str], cores: Sequence[int] = (), sysfs: str = "/sys"
) -> str:
    """Return the text of the file, which allows `user` every set and every revert for these GPUs, and for the governor
    of these cores."""
    commands = [f"{nvidia_smi} -i {word(uuid)} {change}" for uuid in uuids for change in changes()]
    if cores:
        files = [word(GOVERNOR_FILES.format(root=sysfs, cpu=cpu)) for cpu in cores]
        commands.append(f"{tee} {' '.join(files)}")
    head = f"# {PATH}: {user} may change and revert GPU settings. Install it with: visudo -f {PATH}"
    listed = ", \\\n    ".join(commands)
    return f"{head}\n{word(user)} ALL=(root) NOPASSWD: \\\n    {listed}\n"


def changes() -> Iterator[str]:
    """Yield sudoers patterns for every way in which Workbench calls nvidia-smi to change a setting, without `-i
    UUID`."""
    yield "-pm [01]"
    for whole, part in POWER_W:
        yield f"-pl {DIGIT * whole}" + (f".{DIGIT * part}" if part else "")
    for which, lengths in CLOCK_MHZ.items():
        for low, high in product(*lengths):
            yield rf"--lock-{which}-clocks\={DIGIT * low}\,{DIGIT * high}"
        yield f"--reset-{which}-clocks"


def word(text: str) -> str:
    """Return `text` escaped as a word of a command in sudoers(5)."""
    return "".join("\\" + c if c in ",:=\\" else c for c in text)
