"""Which directories are on a disk of this machine, from lists of mounts like the kernel's."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.hosts.local_disks import is_on_local_disk

MOUNTS = r"""
22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
30 22 0:25 / {base}/home rw,relatime shared:9 - nfs4 server:/home rw,vers=4.2
31 30 0:26 / {base}/home/ada/scratch rw - xfs /dev/sdb1 rw
32 22 0:27 / {base}/my\040disk rw - tmpfs tmpfs rw
33 22 0:28 / {base}/data rw - ext4 /dev/sdc1 rw
34 33 0:29 / {base}/data rw - fuse.sshfs ada@box:/ rw
a line that is none
"""


@pytest.mark.parametrize(
    ("folder", "is_local"),
    [
        ("runs", True),
        ("home", False),
        ("home/ada/runs", False),
        ("home/ada/scratch/runs", True),
        ("homes", True),  # only begins like a mount
        ("my disk/runs", True),
        ("data/runs", False),  # the later mount hides the disk
        ("link", False),  # leads to the home
    ],
)
def test_the_innermost_and_latest_mount_decides(
    tmp_path: Path, folder: str, is_local: bool
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS.replace("{base}", str(tmp_path)))
    (tmp_path / "link").symlink_to(tmp_path / "home")
    assert is_on_local_disk(str(tmp_path / folder), str(mounts)) is is_local


def test_without_a_list_of_mounts_nothing_is_known(tmp_path: Path) -> None:
    assert not is_on_local_disk(str(tmp_path), str(tmp_path / "none"))
