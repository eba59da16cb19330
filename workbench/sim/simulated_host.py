"""A simulated host: a real host on which the simulated programs come first on the PATH, and the
telemetry reads a simulated driver."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from workbench.hosts.base import (
    LOOPBACK,
    BaseHost,
    Completed,
    FileError,
    Forward,
    Host,
    HostFacts,
    LinkEvent,
    Stream,
)
from workbench.hosts.boot import BOOT_ID
from workbench.hosts.login_question import Ask
from workbench.hosts.script_files import read_script
from workbench.model.errors import InputError
from workbench.sim import profiles
from workbench.sim.engines import SOURCE_CHECKOUTS

HERE = Path(__file__).resolve().parent
BIN = str(HERE / "bin")
DRIVER = str(HERE / "driver.py")
# main.py of the directory that replaces an engine's source checkout.
_MAIN = """import os, sys
server, engine = {server!r}, {engine!r}
os.execv(sys.executable, [sys.executable, server, "--engine", engine, *sys.argv[1:]])
"""
# exit statuses of PREPARE: on a machine without the simulated programs, and on a full disk
_NOT_OURS, _DISK_FULL = 3, 4
_FREE_SPACE_STEP = "free some space there, or set XDG_STATE_HOME to a directory on another disk"
CORES = ("0", "1", "2", "3")
PREPARE = read_script(__file__, "prepare_simulated_host.sh")


class SimulatedHost(BaseHost):
    """A simulated host. Its commands run on the host `inner`, but find the simulated programs
    first. `inner` must have the files of this machine: it is local, or ssh to this machine.

    `state_dir` is the absolute path of the directory for runs and for the journal of GPU settings.
    Its subdirectory driver/ has the state of the simulated GPUs, so commands with the same state
    directory see the same GPUs. `driver` replaces this subdirectory, so that users with separate
    state directories can share GPUs. `twin` is a suffix of the host's name that distinguishes
    several hosts with the same profile.
    """

    def __init__(
        self, inner: Host, profile: str, state_dir: str, driver: str | None = None, twin: str = ""
    ) -> None:
        try:
            self.profile = profiles.get_profile(profile)
        except KeyError as unknown:
            known = ", ".join(profiles.PROFILES)
            raise InputError(str(unknown.args[0]), next_step=f"use one of {known}") from None
        self.inner = inner
        self.simulated: str = profile
        self.kind = inner.kind
        self.is_local = inner.is_local
        self.may_sudo = inner.may_sudo
        name = f"sim:{profile}"
        if twin:
            name += f"@{twin}"
        self.name = name if inner.is_local else f"{inner.name}/{name}"
        self._state_dir = state_dir.rstrip("/")
        # Values of preset variables that exist only on a simulated host.
        self.preset_variables = {
            engine: f"{self._state_dir}/{engine}" for engine in SOURCE_CHECKOUTS
        }
        self.of_cluster = False  # then a server that spans nodes has a process on each
        self._path: str | None = None
        # directory of the simulated driver; `driver_state.SimState(driver_state, profile)` reads
        # and changes it
        self.driver_state = driver or f"{self._state_dir}/driver"

    @property
    def login_prompt(self) -> Ask | None:
        return self.inner.login_prompt

    @login_prompt.setter
    def login_prompt(self, ask: Ask | None) -> None:
        self.inner.login_prompt = ask

    def environment(self) -> dict[str, str]:
        """Return the environment variables with which a process on `inner` uses the simulated
        programs and driver. Call this after `connect`."""
        variables = {
            "PATH": f"{BIN}:{self._path or '/usr/local/bin:/usr/bin:/bin'}",
            "WORKBENCH_SIM_PROFILE": self.simulated,
            "WORKBENCH_SIM_STATE": self.driver_state,
            "WORKBENCH_SIM_DRIVER": DRIVER,
            "WORKBENCH_SIM_SYSFS": f"{self.driver_state}/sys",
            "WORKBENCH_GPU_REGISTER": f"{self.driver_state}/register",
            "WORKBENCH_SIM_PYTHON": sys.executable or "python3",
        }
        if self.of_cluster:
            variables["WORKBENCH_SIM_RANKS"] = "1"
        return variables

    def on_link(self, listener: Callable[[LinkEvent], None]) -> Callable[[], None]:
        return self.inner.on_link(listener)

    def accept_host_key(self, fingerprint: str) -> None:
        self.inner.accept_host_key(fingerprint)

    async def connect(self) -> None:
        await self.inner.connect()
        await self._prepare_simulated_environment()

    async def _prepare_simulated_environment(self) -> None:
        if self._path is not None:
            return
        cores = () if self.profile.virtualization else CORES  # a virtual machine has no cpufreq
        done = await self.inner.run(
            ["sh", "-c", PREPARE, "sh", BIN, f"{self.driver_state}/sys", *cores]
        )
        if done.returncode == _NOT_OURS:
            raise InputError(
                f"{self.inner.name} cannot run a simulation: it does not have Workbench's own "
                f"files ({BIN})",
                next_step="--simulate works on this machine, and over ssh to itself",
            )
        if done.returncode == _DISK_FULL:
            raise FileError(
                f"the disk of {self.driver_state} is full, and a new simulated host keeps its state "
                "there",
                host=self.inner.name,
                next_step=_FREE_SPACE_STEP,
            )
        if done.returncode != 0:
            raise FileError(
                f"cannot write under {self.driver_state}: {done.err.strip()}",
                host=self.inner.name,
                next_step="make it writable, or set XDG_STATE_HOME",
            )
        for engine in SOURCE_CHECKOUTS:
            text = _MAIN.format(server=str(HERE / "engine_server.py"), engine=engine)
            await self._write_if_changed(f"{self._state_dir}/{engine}/main.py", text.encode())
        answers = "".join(f"{line}\n" for line in self.profile.doctor)
        await self._write_if_changed(f"{self.driver_state}/doctor", answers.encode())
        self._path = done.out

    async def _write_if_changed(self, path: str, data: bytes) -> None:
        """Write a file of the simulation unless it has this content, so that a simulated host can
        still be read when its disk is full."""
        with contextlib.suppress(FileError):
            if await self.inner.read_file(path) == data:
                return
        try:
            await self.inner.write_file(path, data)
        except FileError as error:
            error.next_step = error.next_step and _FREE_SPACE_STEP
            raise

    async def _merge_environment(self, env: Mapping[str, str] | None) -> dict[str, str]:
        """Return the environment of a program on the simulated host: `environment()` with the
        variables of `env`. A PATH in `env` comes after the simulated programs."""
        await self._prepare_simulated_environment()
        if env is None:
            return self.environment()
        merged = {**self.environment(), **env}
        if "PATH" in env:
            merged["PATH"] = f"{BIN}:{env['PATH']}"
        return merged

    async def state_dir(self) -> str:
        await self._prepare_simulated_environment()
        return self._state_dir

    async def _run(
        self,
        argv: Sequence[str],
        input: bytes,
        timeout_s: float,
        env: Mapping[str, str] | None,
    ) -> Completed:
        return await self.inner.run(
            argv, input=input, timeout_s=timeout_s, env=await self._merge_environment(env)
        )

    async def stream(
        self,
        argv: Sequence[str],
        *,
        input: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> Stream:
        return await self.inner.stream(argv, input=input, env=await self._merge_environment(env))

    async def read_file(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        if path == BOOT_ID:  # a test starts the simulated host again by writing its own
            with contextlib.suppress(FileError):
                return await self.inner.read_file(f"{self.driver_state}/boot_id", limit=limit)
        return await self.inner.read_file(path, offset=offset, limit=limit)

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        await self.inner.write_file(path, data, mode=mode)

    async def forward(self, port: int, address: str = LOOPBACK) -> Forward:
        return await self.inner.forward(port, address)

    async def facts(self) -> HostFacts:
        """Return the properties of the host `inner`, changed to those of the simulated host."""
        facts = await self.inner.facts()
        unified_kib = self.profile.host_memory_kib
        return replace(
            facts,
            name=self.name,
            simulated=self.simulated,
            nvidia_smi=f"{BIN}/nvidia-smi",
            path=(BIN, *facts.path),
            container=self.profile.container,
            virtualization="vmware" if self.profile.virtualization == 1 else "none",
            memory_total_bytes=unified_kib * 1024 if unified_kib else facts.memory_total_bytes,
            extra={**facts.extra, "simulated": self.profile.title},
        )

    async def read_job_gpus(self) -> tuple[str, ...] | None:
        return await self.inner.read_job_gpus()

    async def close(self) -> None:
        await self.inner.close()

    @property
    def connected(self) -> bool:
        return self.inner.connected
