"""Values of a host that `HostFacts` does not have: limits, memory, disk, idle states of the CPU,
the CUDA toolkit, listening ports, and processes of engines. One script reads them, in one round
trip."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from workbench.engines import registry
from workbench.hosts.base import Host
from workbench.hosts.script_files import read_script
from workbench.hosts.shell_scripts import KERNEL_LOG_FUNCTION, parse_key_value_pairs, shell_argv
from workbench.hosts.swept_command import run_and_end_leftovers
from workbench.model.lazy_dataclass import dataclass
from workbench.model.untrusted_numbers import parse_hexadecimal
from workbench.server.file_limit import UNLIMITED_FILES

OUTPUT_MAX_BYTES = 65536

_SCRIPT = KERNEL_LOG_FUNCTION + read_script(__file__, "read_host_values.sh")


@dataclass(frozen=True, slots=True)
class IdleState:
    """An idle state (C-state) of the CPU. `latency_us` is the time in microseconds that a core
    needs to leave the state."""

    name: str
    latency_us: int
    enabled: bool


@dataclass(frozen=True, slots=True)
class Worker:
    """A process of an engine other than the process that answers its API requests. `parent` is the
    id and `parent_name` the name of its parent process."""

    pid: int
    parent: int
    parent_name: str
    name: str


@dataclass(frozen=True, slots=True)
class HostValues:
    """Values that read_host_values.sh read on a host. None and "" mean that a value is unknown, and
    UNLIMITED_FILES that there is no limit."""

    files_soft: int | None = None
    files_hard: int | None = None
    memlock_kib: int | None = None
    memory_available_kib: int | None = None
    shared_memory_free_kib: int | None = None
    shared_memory_kib: int | None = None
    disk_free_kib: int | None = None
    hub: str | None = None  # directory of the models that the Hugging Face hub gives
    idle_states: tuple[IdleState, ...] = ()
    cuda_home: str | None = None
    cuda_home_missing: bool = False
    nvcc: str | None = None
    nvcc_version: str | None = None
    environment_file: tuple[str, ...] = ()  # variables of /etc/environment whose value contains "$"
    nouveau: bool = False
    open_module: bool = False
    infiniband: bool = False
    ports: Mapping[int, int | None] | None = None  # taken port -> process, None: of another user
    workers: tuple[Worker, ...] = ()
    xids: tuple[str, ...] = ()  # lines of the kernel's log since its start
    own: frozenset[int] | None = None  # processes of Workbench's runs
    stacks: tuple[str, ...] = ()  # a simulated host's answers of `engine_packages`: "ENGINE JSON"


async def read_host_values(host: Host, ports: Iterable[int], timeout_s: float) -> HostValues:
    """Return the values of `host`. `ports` of the result has the processes that listen on those of
    the ports `ports` that are in use. Raises HostError if the host does not answer within
    `timeout_s` seconds."""
    words = (registry.join_engine_worker_patterns(), *(f"{port:04X}" for port in ports))
    done = await run_and_end_leftovers(host, shell_argv(_SCRIPT, *words), timeout_s=timeout_s)
    return parse_host_values(done.stdout[:OUTPUT_MAX_BYTES].decode("utf-8", "replace"))


def parse_host_values(output: str) -> HostValues:
    """Return the values in `output`, the text that read_host_values.sh printed. Lines that cannot
    be understood are skipped."""
    one: dict[str, str] = {}
    many: dict[str, list[str]] = {}
    for key, value in parse_key_value_pairs(output, OUTPUT_MAX_BYTES):
        one.setdefault(key, value.strip())
        many.setdefault(key, []).append(value.strip())
    shared = _whole_numbers_in(one.get("shared_memory", ""))
    return HostValues(
        files_soft=_parse_resource_limit(one.get("files_soft", "")),
        files_hard=_parse_resource_limit(one.get("files_hard", "")),
        memlock_kib=_parse_resource_limit(one.get("memlock_kib", "")),
        memory_available_kib=_parse_resource_limit(one.get("memory_available_kib", "")),
        shared_memory_free_kib=_first_whole_number(one.get("shared_memory", "")),
        shared_memory_kib=shared[1] if len(shared) > 1 else None,
        disk_free_kib=_first_whole_number(one.get("disk", "")),
        hub=one.get("hub"),
        idle_states=tuple(filter(None, map(_parse_idle_state, many.get("idle", [])))),
        cuda_home=one.get("cuda_home"),
        cuda_home_missing="cuda_home_missing" in one,
        nvcc=one.get("nvcc"),
        nvcc_version=one.get("nvcc_version"),
        environment_file=tuple(one.get("environment_file", "").split()),
        nouveau="nouveau" in one,
        open_module="open_module" in one,
        infiniband="infiniband" in one,
        ports=dict(filter(None, map(_parse_listening_port_and_pid, many.get("port", [])))),
        workers=tuple(filter(None, map(_parse_engine_worker, many.get("worker", [])))),
        xids=tuple(many.get("xid", [])),
        own=frozenset(pid for text in many.get("own", []) for pid in _whole_numbers_in(text)),
        stacks=tuple(many.get("stack", [])),
    )


def _whole_numbers_in(text: str) -> list[int]:
    return [int(word) for word in text.split() if word.isdecimal() and len(word) < 19]


def _first_whole_number(text: str) -> int | None:
    return next(iter(_whole_numbers_in(text)), None)


def _parse_resource_limit(text: str) -> int | None:
    return UNLIMITED_FILES if text == "unlimited" else _first_whole_number(text)


def _parse_idle_state(text: str) -> IdleState | None:
    latency, _, rest = text.partition(" ")
    off, _, name = rest.partition(" ")
    latency_us = _first_whole_number(latency)
    if latency_us is None or not name:
        return None
    return IdleState(name, latency_us, off == "0")


def _parse_listening_port_and_pid(text: str) -> tuple[int, int | None] | None:
    port, _, pid = text.partition(" ")
    number = parse_hexadecimal(port)
    return None if number is None else (number, _first_whole_number(pid))


def _parse_engine_worker(text: str) -> Worker | None:
    words = text.split(None, 3)
    ids = _whole_numbers_in(" ".join(words[:2]))
    if len(words) != 4 or len(ids) != 2:
        return None
    return Worker(ids[0], ids[1], words[2], words[3])
