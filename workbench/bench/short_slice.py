"""A short time slice for a process that answers at once and works little, such as a relay."""

from __future__ import annotations

import ctypes
import os
import struct

_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}  # the number of the system call
# size, policy, flags, nice, priority, runtime in ns, deadline, period, least and highest
# utilization
_SCHED_ATTRIBUTES = struct.Struct("=IIQiIQQQII")


def request_own_short_time_slice(slice_ns: int = 100_000) -> None:
    """Ask the kernel to run this thread as soon as it wakes, although another has its core. In
    return the kernel may interrupt it after `slice_ns`.

    Nobody needs a right for it. Linux from 6.12 on heeds it, and an older one ignores it: then the
    thread wakes as any other. Under another policy than the normal one nothing is changed.
    """
    call = _SCHED_SETATTR.get(os.uname().machine)
    if call is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    asked = _SCHED_ATTRIBUTES.pack(
        _SCHED_ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, slice_ns, 0, 0, 0, 0
    )
    ctypes.CDLL(None).syscall(call, 0, asked, 0)
