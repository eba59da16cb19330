"""Who can change a file: whether only root can, and whether a given user can. Workbench sends this
module to the host with the guard, so it uses only the standard library and Python 3.8."""

from __future__ import annotations

import stat

TYPE_CHECKING = False  # typing is not imported on a host: it takes half a MiB
if TYPE_CHECKING:
    from collections.abc import Collection


def only_root_can_change(uid: int, gid: int, mode: int) -> bool:
    """Return whether only root can change a file or link with this owner, group and mode. For a
    directory, return whether only root can change root's entries in it."""
    if uid != 0:
        return False
    others = stat.S_IWOTH if gid == 0 else stat.S_IWOTH | stat.S_IWGRP
    if stat.S_ISLNK(mode):
        return True  # only the directory decides who can replace a link
    # only root moves root's files in a sticky directory
    sticky = stat.S_ISDIR(mode) and mode & stat.S_ISVTX
    return not mode & others or bool(sticky)


def user_can_write(user: int, groups: Collection[int], *, uid: int, gid: int, mode: int) -> bool:
    """Return whether the user with the id `user`, who is in `groups`, can write a file with the
    owner `uid`, the group `gid` and this mode. Its owner can, because the owner can change the
    mode."""
    if user in (0, uid):
        return True
    return bool(mode & (stat.S_IWGRP if gid in groups else stat.S_IWOTH))
