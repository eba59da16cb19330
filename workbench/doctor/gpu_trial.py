"""The program that copies data between the GPUs of a host and compares the bytes. An engine's own
Python runs it, with the engine's own torch and NCCL.

Each case runs in a child, because a broken path between two GPUs makes a copy hang in the driver.
The children are forked after torch was imported and before it has touched a GPU. A child that does
not end in time is killed. The end of stdin ends the program with all its children: whoever started
it is gone.

argv[1]: {"case_s": limit of one case, "total_s": no case begins later, "words": size of a copy in words of
4 bytes, "backend": "nccl", or "gloo" for a collective on the CPU alone}
stdout, one JSON document per line:
{"torch", "cuda", "nccl", "devices": [{"name", "uuid"}], "peer": [[can copy directly]]}   first
{"case": "pair", "a", "b", ...}              of each pair of devices, see `copy_and_compare_bytes`
{"case": "all-reduce", "p2p": bool, ...}     see `run_all_reduce_rank`
{"error": reason}                            if nothing can be tried

A case that failed has "hang": true, or "error". If its process cannot even be killed, it has
"unkillable": its process id. A case that was left out has "skipped": reason.
"""

# ruff: noqa: UP031
# (it runs with the engine's Python, from 3.8 on, and must stand alone)

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from functools import partial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

COPIES = 8  # that are timed
REDUCTIONS = 20
REDUCED_WORDS = 1 << 18  # 1 MiB of float32
MOST_HANGS = 3  # after them, no further case is tried
KILL_S = 3.0
MOST_BYTES = 1 << 16  # of an answer of a child
TEXT_CHARS = 400
PR_SET_PDEATHSIG = 1


def main() -> None:
    sys.path[:] = [entry for entry in sys.path if entry]  # the directory may be a stranger's
    orders = json.loads(sys.argv[1])
    out = os.dup(1)
    os.dup2(2, 1)  # NCCL writes its messages to stdout
    threading.Thread(target=exit_when_stdin_ends, daemon=True).start()  # torch is imported for long
    try:
        import torch
    except Exception as error:
        write_json_line(out, {"error": "torch cannot be imported: %s" % first_line_of_error(error)})
        return
    GpuTrial(torch, orders, out).run_all_cases()


def exit_when_stdin_ends() -> None:
    """Wait for the end of stdin, then end this process. The kernel kills its children with it."""
    while os.read(0, 4096):
        pass
    os._exit(1)


def write_json_line(descriptor: int, document: dict[str, Any]) -> None:
    os.write(descriptor, json.dumps(document).encode() + b"\n")


def first_line_of_error(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:TEXT_CHARS]


class GpuTrial:
    def __init__(self, torch: Any, orders: dict[str, Any], out: int) -> None:
        self.torch = torch
        self.out = out
        self.case_s = float(orders["case_s"])
        self.last_s = time.monotonic() + float(orders["total_s"])
        self.words = int(orders["words"])
        self.backend = str(orders["backend"])
        self.hangs = 0

    def run_all_cases(self) -> None:
        if self.backend == "gloo":
            self.run_all_reduce(2, True)
            return
        seen = self.run_case_in_children([partial(describe_devices, self.torch)])
        write_json_line(self.out, seen)
        count = len(seen.get("devices", ()))
        for a in range(count):
            for b in range(a + 1, count):
                found = self.run_or_skip_case(
                    [partial(copy_and_compare_bytes, self.torch, a, b, self.words)]
                )
                write_json_line(self.out, {"case": "pair", "a": a, "b": b, **found})
        if count > 1:
            found = self.run_all_reduce(count, True)
            if found.get("hang") or found.get("wrong_bytes") or "error" in found:
                self.run_all_reduce(count, False)

    def run_all_reduce(self, rank_count: int, p2p: bool) -> dict[str, Any]:
        port = find_free_port()
        work = [
            partial(run_all_reduce_rank, self.torch, self.backend, rank, rank_count, port, p2p)
            for rank in range(rank_count)
        ]
        found = self.run_or_skip_case(work)
        write_json_line(self.out, {"case": "all-reduce", "ranks": rank_count, "p2p": p2p, **found})
        return found

    def run_or_skip_case(self, work: Sequence[Callable[[], dict[str, Any]]]) -> dict[str, Any]:
        if self.hangs >= MOST_HANGS:
            return {"skipped": "%d cases before it hung" % self.hangs}
        if time.monotonic() > self.last_s:
            return {"skipped": "the time for all cases was over"}
        found = self.run_case_in_children(work)
        self.hangs += bool(found.get("hang"))
        return found

    def run_case_in_children(self, work: Sequence[Callable[[], dict[str, Any]]]) -> dict[str, Any]:
        """Call each function of `work` in a child process of its own, at the same time, and return
        the answer with the most wrong bytes. If one fails, return {"error": reason}; if one does
        not end in time, return {"hang": true, …}. If a child cannot be killed, the answer also has
        "unkillable", its process id."""
        children = [run_in_forked_child(one) for one in work]
        answers = {reader: b"" for _, reader in children}
        waiting = set(answers)
        failed: dict[str, Any] | None = None
        end = time.monotonic() + self.case_s
        while waiting and failed is None and time.monotonic() < end:
            left = max(0.0, end - time.monotonic())
            for reader in select.select(sorted(waiting), [], [], left)[0]:
                part = os.read(reader, 4096)
                answers[reader] += part
                if answers[reader].endswith(b"\n"):
                    waiting.discard(reader)
                    if b'"error"' in answers[reader]:
                        failed = json.loads(answers[reader].decode())
                elif not part:
                    waiting.discard(reader)
                    failed = {"error": "its process ended without an answer"}
                elif len(answers[reader]) > MOST_BYTES:
                    waiting.discard(reader)
        left_over = kill_and_list_unkillable_pids(children)
        if failed is None and waiting:
            failed = {"hang": True, "limit_s": self.case_s}
        found = failed or answer_with_most_wrong_bytes(
            [json.loads(said.decode()) for said in answers.values()]
        )
        if left_over:
            found["unkillable"] = left_over[0]
        return found


def run_in_forked_child(work: Callable[[], dict[str, Any]]) -> tuple[int, int]:
    """Call `work` in a forked child. Return (process id of the child, file descriptor from which
    its answer can be read as a line of JSON)."""
    reader, writer = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    try:
        os.close(reader)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        try:
            found = work()
        except BaseException as error:
            found = {"error": "%s: %s" % (type(error).__name__, first_line_of_error(error))}
        write_json_line(writer, found)
        while True:  # other ranks may still need this one; the parent ends all
            signal.pause()
    finally:
        os._exit(1)


def kill_and_list_unkillable_pids(pids_and_pipes: list[tuple[int, int]]) -> list[int]:
    """Kill the children, each of which has a process id and a pipe with its answer. Return the ids
    of those that do not end, because they hang in the driver."""
    for pid, reader in pids_and_pipes:
        os.kill(pid, signal.SIGKILL)
        os.close(reader)
    alive = [pid for pid, _ in pids_and_pipes]
    end = time.monotonic() + KILL_S
    while alive and time.monotonic() < end:
        alive = [pid for pid in alive if os.waitpid(pid, os.WNOHANG) == (0, 0)]
        if alive:
            time.sleep(0.01)
    return alive


def answer_with_most_wrong_bytes(found: list[dict[str, Any]]) -> dict[str, Any]:
    return max(found, key=lambda one: one.get("wrong_bytes", 0))


def find_free_port() -> int:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    listener.close()
    return int(port)


def describe_devices(torch: Any) -> dict[str, Any]:
    """Return the versions of torch, CUDA and NCCL, the GPUs that torch sees, and between which it
    can copy directly. If it sees none, return "error" with the reason."""
    found: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda, "devices": []}
    if not torch.cuda.is_available():
        if torch.version.cuda is None:
            return {**found, "error": "this torch is built without CUDA"}
        torch.cuda.init()  # its error says why
        return {**found, "error": "this torch sees no GPU"}
    count = torch.cuda.device_count()
    for index in range(count):
        uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
        found["devices"].append(
            {"name": torch.cuda.get_device_name(index), "uuid": str(uuid or "")}
        )
    found["peer"] = [
        [a == b or bool(torch.cuda.can_device_access_peer(a, b)) for b in range(count)]
        for a in range(count)
    ]
    try:
        found["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    except Exception:  # a torch without NCCL
        found["nccl"] = None
    return found


def copy_and_compare_bytes(torch: Any, a: int, b: int, word_count: int) -> dict[str, Any]:
    """Copy `word_count` words of 4 bytes from GPU `a` to GPU `b` and back, and compare all bytes on
    the CPU. Return {"copies": [of each direction {"source", "target", "wrong_bytes", "gb_s"}]}. If
    bytes are wrong, a direction also has "first_wrong", the position of the first, and
    "sender_wrong_bytes", how many were wrong before the copy."""
    source = torch.arange(word_count, dtype=torch.int32)
    size = 4 * word_count
    found = []
    for one, other in ((a, b), (b, a)):
        sent = source.to("cuda:%d" % one)
        arrived = torch.zeros_like(sent, device="cuda:%d" % other)
        torch.cuda.synchronize(other)
        arrived.copy_(sent)
        torch.cuda.synchronize(one)
        torch.cuda.synchronize(other)
        copy = {"source": one, "target": other}
        copy.update(find_wrong_bytes(torch, arrived.cpu(), source))
        if copy["wrong_bytes"]:
            before = find_wrong_bytes(torch, sent.cpu(), source)
            copy["sender_wrong_bytes"] = before["wrong_bytes"]
        with torch.cuda.device(one):
            began = torch.cuda.Event(enable_timing=True)
            ended = torch.cuda.Event(enable_timing=True)
            began.record()
            for _ in range(COPIES):
                arrived.copy_(sent)
            ended.record()
            torch.cuda.synchronize(one)
            torch.cuda.synchronize(other)
        copy["gb_s"] = round(COPIES * size / (began.elapsed_time(ended) * 1e6), 3)
        found.append(copy)
    return {"copies": found}


def find_wrong_bytes(torch: Any, found: Any, wanted: Any) -> dict[str, Any]:
    """Return {"wrong_bytes": how many bytes of the tensor `found` differ from `wanted`}, and if
    some do, "first_wrong", the position of the first."""
    differs = found.view(torch.uint8).ne(wanted.view(torch.uint8))
    count = int(differs.sum())
    if not count:
        return {"wrong_bytes": 0}
    return {"wrong_bytes": count, "first_wrong": int(differs.nonzero()[0])}


def run_all_reduce_rank(
    torch: Any, backend: str, rank: int, rank_count: int, port: int, p2p: bool
) -> dict[str, Any]:
    """Be one of the ranks of an all-reduce of 1 MiB per rank: count the bytes that differ from the
    expected sum, and time it. Without `p2p`, NCCL's P2P is off. Return
    {"wrong_bytes", "first_wrong", "mean_us": time of one operation}."""
    from datetime import timedelta

    import torch.distributed as dist

    if not p2p:
        os.environ["NCCL_P2P_DISABLE"] = "1"
    on_gpu = backend == "nccl"
    if on_gpu:
        torch.cuda.set_device(rank)
    else:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        backend,
        init_method="tcp://127.0.0.1:%d" % port,
        rank=rank,
        world_size=rank_count,
        timeout=timedelta(seconds=60),
    )
    base = torch.arange(REDUCED_WORDS, dtype=torch.float32).remainder(1024)  # sums are exact
    data = (base + rank).to("cuda:%d" % rank if on_gpu else "cpu")
    dist.all_reduce(data)
    wanted = base * rank_count + rank_count * (rank_count - 1) // 2
    found = find_wrong_bytes(torch, data.cpu(), wanted)
    began = time.perf_counter()
    for _ in range(REDUCTIONS):
        dist.all_reduce(data)
    if on_gpu:
        torch.cuda.synchronize(rank)
    found["mean_us"] = round((time.perf_counter() - began) / REDUCTIONS * 1e6, 1)
    return found


if __name__ == "__main__":
    main()
