"""The stand-in for torch's collective operations."""

from __future__ import annotations

import os
import time

from torch import PAGE_BYTES, STATE, Tensor, hang_forever, read_copy_fault


def init_process_group(backend: str, **options: object) -> None:
    pass


def all_reduce(tensor: Tensor) -> None:
    broken = read_copy_fault("reduce")
    without_p2p = os.environ.get("NCCL_P2P_DISABLE") == "1"
    if broken == "hang" or (broken == "hang with P2P" and not without_p2p):
        hang_forever()
    if broken == "wrong":
        tensor.wrong = PAGE_BYTES
    elif broken and not broken.startswith("hang"):
        raise RuntimeError(broken)
    time.sleep(STATE.profile.interconnect.nccl_us / 1e6)
