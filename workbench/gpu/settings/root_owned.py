"""The check whether only root can change a file. Workbench sends this module to the host with the
guard, so it uses only the standard library and Python 3.8."""

from __future__ import annotations

import stat


def only_roots(uid: int, gid: int, mode: int) -> bool:
    """Return whether only root can change a file or link with this owner, group and mode. For a
    directory, return whether only root can change root's entries in it."""
    others = stat.S_IWOTH if gid == 0 else stat.S_IWOTH | stat.S_IWGRP
    if stat.S_ISLNK(mode):
        return uid == 0  # only the directory decides who can replace a link
    # only root moves root's files in a sticky directory
    sticky = stat.S_ISDIR(mode) and mode & stat.S_ISVTX
    return uid == 0 and (not mode & others or bool(sticky))
