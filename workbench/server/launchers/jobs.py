"""The common part of the launchers of all schedulers: the server is a batch job on a node of a
cluster, which may be another machine than the login host.

The job's script and the keeper are constant shell code (job_scripts.py). The command line of the
server is written into the file `server` of the run directory. The nodes and the login host must see
that directory under the same path.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from workbench.engines.command_line import recognize_engine_start
from workbench.engines.registry import join_engine_process_patterns
from workbench.hosts.base import Host
from workbench.hosts.script_files import read_script
from workbench.hosts.shell_scripts import parse_last_values, shell_argv
from workbench.model import open_files
from workbench.model.errors import HostError, InputError, ServerError
from workbench.model.findings import Finding, Level, PlanChange
from workbench.model.job import SCHEDULERS
from workbench.model.job_request import VISIBLE_TO_CUDA, JobRequest
from workbench.model.lazy_dataclass import dataclass
from workbench.model.loopback import is_loopback
from workbench.model.plan import Command
from workbench.model.untrusted_numbers import parse_whole_number
from workbench.model.untrusted_text import VARIABLE_NAME, clean_text
from workbench.server import process_command
from workbench.server.launchers import job_scripts
from workbench.server.launchers.launcher import (
    AdoptableServer,
    Keeper,
    Launch,
    LaunchedServer,
    ServerExitState,
)
from workbench.server.process_command import ProcessCommand, parse_command

STOP_GRACE_S = (
    90.0  # Slurm waits 30 s (KillWait) from TERM to KILL, and then runs the epilog of the node
)
_ASK_TIMEOUT_S = 40.0
_JOB_ID = re.compile(
    r"[0-9]{1,10}[A-Za-z0-9_.\[\]+-]{0,80}"
)  # of Slurm (7, 7_2, 7+1) and of PBS (7.server, 7[2].server)
_LIST_JOBS_HINT = "`workbench jobs` lists your jobs"
_LOCAL_FILE_SYSTEMS = frozenset({"ext2/ext3", "ext4", "xfs", "btrfs", "tmpfs", "overlayfs", "zfs"})

_CHECK_SCRIPT = read_script(__file__, "check_scheduler.sh")


@dataclass(frozen=True, slots=True)
class Scheduler:
    """A scheduler of jobs, such as Slurm. `name` is its value for the option --as, `programs` are
    those that submit, list and cancel a job, `functions` is the shell code that job_scripts.py
    describes, and `nodes` the command that prints the names of its nodes. `enters` says whether a
    command can be run inside a running job."""

    name: str
    programs: tuple[str, ...]
    functions: str
    nodes: tuple[str, ...]
    enters: bool = False

    @property
    def title(self) -> str:
        return SCHEDULERS[self.name]


class JobLauncher(ABC):
    """Starts servers as jobs of a scheduler. The program, the model and the port of such a server
    are those of a compute node, so the login host cannot check them."""

    scheduler: Scheduler
    stop_s = STOP_GRACE_S
    looks_at: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return self.scheduler.name

    @property
    def start_program_name(self) -> str:
        return self.scheduler.programs[0]

    @abstractmethod
    def job_options(self, request: JobRequest) -> tuple[str, ...]:
        """Return the arguments with which the shell function `submit` submits the job."""

    @abstractmethod
    def submit_command(self, request: JobRequest, run_dir: str) -> tuple[str, ...]:
        """Return the command that submits the job, as a user would type it. `run_dir` is the run's
        directory, which has the job's script."""

    @abstractmethod
    def restart_command(self, launch: Launch, launched: LaunchedServer) -> tuple[str, ...]:
        """Return the command that puts the job back into the queue of the scheduler; () for a job
        that was not submitted yet."""

    async def check(self, host: Host, launch: Launch) -> Sequence[Finding]:
        """Return the findings about a start as a job: missing programs, a scheduler that does not
        answer, too few GPUs, a server that would listen only on its node, or a run directory that
        nodes may not see. Raises HostError if the host cannot be queried."""
        try:
            _server_file_text(launch)
        except InputError as error:
            return (Finding(Level.ERROR, "job.words", error.message, fix=error.next_step),)
        words = (
            launch.run_dir,
            str(len(self.scheduler.programs)),
            *self.scheduler.programs,
            *self.scheduler.nodes,
        )
        done = await host.run(shell_argv(_CHECK_SCRIPT, *words), timeout_s=_ASK_TIMEOUT_S)
        facts: dict[str, list[str]] = {}
        for line in done.out.splitlines():
            key, _, value = line.partition(" ")
            facts.setdefault(key, []).append(value)
        return tuple(self._findings_before_start(launch, facts))

    async def fetch_image(self, host: Host, launch: Launch) -> None:
        """Do nothing: a job needs no image."""
        return

    def _findings_before_start(
        self, launch: Launch, facts: Mapping[str, Sequence[str]]
    ) -> list[Finding]:
        title = self.scheduler.title
        if missing := facts.get("missing"):
            text = f"{title} is not on this host: {', '.join(missing)} not found"
            fix = "name the login host of the cluster with --host, or start without --as"
            return [Finding(Level.ERROR, "job.scheduler", text, fix=fix)]
        if refused := facts.get("refused"):
            fix = f"run `{shlex.join(self.scheduler.nodes)}` on the login host: it shows the error"
            return [
                Finding(
                    Level.ERROR,
                    "job.scheduler",
                    f"{self.scheduler.title} does not answer: {refused[0]}",
                    fix=fix,
                )
            ]
        found: list[Finding] = []
        own = {name.split(".")[0] for name in (*facts.get("host", ()), "localhost", "")}
        others = [node for node in facts.get("node", ()) if node.split(".")[0] not in own]
        if others:
            found += _other_node_findings(launch, others[0], facts.get("files", [""])[0])
        request, needed = _job_request(launch), launch.plan.gpu_count
        asked = request.gpus_text.rpartition(":")[2]
        if 0 < int(asked) < needed:
            text = (
                f"the job asks for {asked} GPUs, but the parallel sizes of the plan need {needed}"
            )
            found.append(
                Finding(Level.WARN, "job.too-few-gpus", text, fix=f"use --run-option gpus={needed}")
            )
        if VISIBLE_TO_CUDA in launch.env:
            text = (
                f"{VISIBLE_TO_CUDA} of the plan is left out: {title} sets it for the GPUs "
                "that it assigns"
            )
            found.append(
                Finding(Level.WARN, "job.gpus", text, VISIBLE_TO_CUDA, "use --run-option gpus=N")
            )
        return found

    def command(self, launch: Launch) -> Command:
        files = self._job_file_contents(launch)
        return Command(
            self.submit_command(_job_request(launch), launch.run_dir),
            files=files,
            host=launch.address,
            port=launch.port,
        )

    def _job_file_contents(self, launch: Launch) -> Mapping[str, str]:
        return {"server": _server_file_text(launch), "job.sh": job_scripts.JOB_SCRIPT}

    def make_keeper(self, launch: Launch) -> Keeper:
        script = job_scripts.keeper_script(self.scheduler.functions)
        words = self.job_options(_job_request(launch))
        argv = shell_argv(script, launch.run_dir, job_name_of(launch.run_id), "submit", *words)
        return Keeper(argv, launch.env, self._job_file_contents(launch))

    def make_adopting_keeper(self, launch: Launch, handle: str) -> Keeper:
        script = job_scripts.keeper_script(self.scheduler.functions)
        # for other Workbenches, which cannot read the process of another node
        files = {"server": _server_file_text(launch)}
        return Keeper(shell_argv(script, launch.run_dir, handle, "follow"), files=files)

    async def read_exit_state(
        self, host: Host, launch: Launch, launched: LaunchedServer
    ) -> ServerExitState:
        script = job_scripts.state_script(self.scheduler.functions)
        words = (job_name_of(launch.run_id), launched.handle, launch.run_dir)
        done = await host.run(shell_argv(script, *words), timeout_s=_ASK_TIMEOUT_S, check=True)
        seen = parse_last_values(done.out.splitlines(), " ")
        phase, job, code = seen.get("phase", "unknown"), seen.get("job", ""), seen.get("code", "")
        if phase == "unknown":
            why = seen.get("why") or done.problem
            raise HostError(
                f"{self.scheduler.title} does not answer: {why}",
                host=host.name,
                next_step="wait: the job and its log are kept, and Workbench asks the scheduler "
                "again",
            )
        if phase in ("queued", "running"):
            return ServerExitState(True, job)
        secrets = (f"{launch.run_dir}/{name}" for name in ("server", "environment"))
        await host.run(["rm", "-f", "--", *secrets])  # a keeper that was killed has left them
        state = seen.get("state") if phase == "ended" else "the scheduler no longer knows it"
        ended = "the job was not submitted before its keeper was lost"
        if job:
            ended = f"job {job} ended: {state}"
        return ServerExitState(False, job, ended, parse_whole_number(code))

    async def stop(self, host: Host, launch: Launch, launched: LaunchedServer) -> None:
        name, job = job_name_of(launch.run_id), launched.handle
        script = job_scripts.cancel_script(self.scheduler.functions)
        words = (name, job, launch.run_dir, str(int(self.stop_s)))
        done = await host.run(shell_argv(script, *words), timeout_s=self.stop_s + _ASK_TIMEOUT_S)
        if done.returncode != 0:
            raise ServerError(
                f"{self.scheduler.title} did not end the job: {done.out.strip() or done.problem} "
                f"(run {launch.run_id})",
                host=host.name,
                command=shlex.join((self.scheduler.programs[-1], job or name)),
                next_step="stop the run again; the job and its log are kept",
            )

    async def restart(self, host: Host, launch: Launch, launched: LaunchedServer) -> None:
        argv = self.restart_command(launch, launched)
        done = await host.run(argv, timeout_s=_ASK_TIMEOUT_S)
        if done.returncode != 0:
            raise ServerError(
                f"{self.scheduler.title} did not put the job {launched.handle} back into its queue: "
                f"{done.problem}",
                host=host.name,
                command=shlex.join(argv),
                next_step="stop the run and start the server again, or ask the operators of the "
                "cluster to requeue the job",
            )

    def installed_unit_name(self, launch: Launch) -> str | None:
        return None

    async def uninstall_and_list_removed(
        self, host: Host, launch: Launch, launched: LaunchedServer
    ) -> Sequence[str]:
        return ()

    async def find_adoptable(
        self, host: Host, handle: str, options: Mapping[str, str]
    ) -> AdoptableServer:
        if not _JOB_ID.fullmatch(handle):
            raise ServerError(
                f"{handle!r} is not the id of a {self.scheduler.title} job",
                host=host.name,
                next_step=_LIST_JOBS_HINT,
            )
        if not self.scheduler.enters:
            raise ServerError(
                f"Workbench cannot follow the server in the job {handle}: {self.scheduler.title} "
                "has no command "
                "that runs a program inside a running job",
                host=host.name,
                next_step="`workbench jobs` shows the job's NODE; benchmark with `workbench bench "
                "--url http://NODE:PORT`",
            )
        script = job_scripts.job_commands_script(self.scheduler.functions)
        words = (
            handle,
            join_engine_process_patterns(),
            process_command.READ_COMMAND_SCRIPT,
            job_scripts.FIND_INSIDE_JOB_SCRIPT,
        )
        done = await host.run(shell_argv(script, *words), timeout_s=_ASK_TIMEOUT_S, check=True)
        about, *processes = re.split(r"(?m)^proc ", done.out)
        seen = parse_last_values(about.splitlines(), " ")
        if seen.get("phase") != "running":
            state = seen.get("state") or seen.get("why") or "not known to the scheduler"
            raise ServerError(
                f"the job {handle} does not run: {clean_text(state)}",
                host=host.name,
                next_step=_LIST_JOBS_HINT,
            )
        found = _outermost_engine_command(processes)
        if found is None:
            why = f": {clean_text(seen['refused'])}" if seen.get("refused") else ""
            raise ServerError(
                f"no server of a known engine was found in the job {handle} on "
                f"{clean_text(seen.get('host', ''))}{why}",
                host=host.name,
                next_step="if the server is still starting, try again later; `workbench jobs` "
                "lists your jobs",
            )
        # its keeper reports the node
        return AdoptableServer(handle, found.argv, found.env or {}, found.workdir)


def _outermost_engine_command(processes: Sequence[str]) -> ProcessCommand | None:
    """Return the command of the first process that starts an engine and whose parent does not; None
    if there is none. Each of `processes` is a line with the process's id and its parent's, then its
    command as READ_COMMAND_SCRIPT of process_command prints it."""
    found: dict[str, tuple[str, ProcessCommand]] = {}
    for text in processes:
        ids, _, rest = text.partition("\n")
        pid, _, parent = ids.partition(" ")
        command = parse_command(rest).without_control_characters()
        if recognize_engine_start(command.argv) is not None:
            found[pid] = parent, command
    return next((command for parent, command in found.values() if parent not in found), None)


def job_name_of(run_id: str) -> str:
    """Return the name of a run's job, at most 15 characters, which all versions of PBS accept. A
    plan without a run, whose `run_id` has another form, gets "wb-RUN"."""
    words = run_id.split("-")
    return f"wb-{words[1]}-{words[-1]}"[:15] if len(words) > 2 else "wb-RUN"


def _job_request(launch: Launch) -> JobRequest:
    return JobRequest(job_name_of(launch.run_id), launch.plan.gpu_count, 1, launch.plan.run_options)


def _other_node_findings(launch: Launch, node: str, file_system_type: str) -> list[Finding]:
    """Return the findings about a server that runs on the node `node` and not on the login host.
    `file_system_type` is that of the run directory; "" if unknown."""
    found: list[Finding] = []
    if is_loopback(launch.address):
        text = (
            f"the server would listen on {launch.address} of its node only, where this host "
            "does not reach it"
        )
        fix = "set host=0.0.0.0, and an API key, because users of the cluster then reach the port"
        change = (PlanChange("host", "0.0.0.0"),)
        found.append(Finding(Level.ERROR, "job.loopback", text, "host", fix, changes=change))
    if file_system_type in _LOCAL_FILE_SYSTEMS:
        place = posixpath.dirname(launch.run_dir)
        text = (
            f"{place} is on a local file system ({file_system_type}): nodes such as {node} may not see "
            "the run directory"
        )
        fix = "set XDG_STATE_HOME on the login host to a directory that all nodes see"
        found.append(Finding(Level.WARN, "job.files", text, fix=fix))
    return found


def _server_file_text(launch: Launch) -> str:
    """Return the text of the file `server`: shell code that sets the server's environment and
    working directory, and its command line as $1, $2, … CUDA_VISIBLE_DEVICES is left out: the
    scheduler sets it. Raises InputError for an invalid variable name or a NUL byte."""
    lines = []
    for name, value in launch.env.items():
        if not VARIABLE_NAME.fullmatch(name):
            raise InputError(f"{name!r} is not a valid name of an environment variable")
        if name != VISIBLE_TO_CUDA:
            lines.append(f"export {name}={shlex.quote(value)}")
    if launch.open_files:
        lines.append(open_files.open_files_shell_lines(launch.open_files))
    lines.append(f"cd -- {shlex.quote(launch.workdir)} || exit 1" if launch.workdir else "cd")
    lines.append(f"set -- {shlex.join(launch.argv)}")
    if any("\0" in line for line in lines):
        raise InputError(
            "the server's command line or environment contains a NUL byte, which a "
            "shell cannot pass on"
        )
    return "\n".join(lines) + "\n"
