"""Whether a directory is on a disk of this machine or on a network file system."""

from __future__ import annotations

from pathlib import Path

# a question about a file there is answered by this kernel alone
_KINDS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay"})
_MOUNTS = "/proc/self/mountinfo"


def is_on_local_disk(folder: str, mounts: str = _MOUNTS) -> bool:
    """Return whether `folder` is on a disk of this machine, by `mounts`, the kernel's list of
    mounts. False if that is not known, as on systems other than Linux."""
    try:
        lines = Path(mounts).read_text(errors="replace").splitlines()
        inside = Path(folder).resolve()
    except OSError:
        return False
    kind, length = "", -1
    for line in lines:
        mount, _, rest = line.partition(" - ")
        words, kinds = mount.split(" "), rest.split(" ")
        if len(words) < 5:
            continue
        point = Path(_unescape_path(words[4]))
        # of two mounts at one place, the later one hides the other
        if len(point.parts) >= length and inside.is_relative_to(point):
            kind, length = kinds[0], len(point.parts)
    return kind in _KINDS


def _unescape_path(text: str) -> str:
    """Return a path of the kernel's list, which has blanks and backslashes as octal numbers."""
    for code, char in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        text = text.replace(code, char)
    return text
