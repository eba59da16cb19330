"""Servers as containers of docker and podman.

The keeper pulls the image if it is missing, pins it by its digest, starts the container detached
with the label `workbench.run`, and copies its whole log. It removes the container once it has the
log and the exit code. The container is identified by its id, which docker or podman writes into the
run directory: another container could have the same name or label.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from workbench.engines import registry
from workbench.engines.base import Engine
from workbench.engines.containers import (
    HUB_CACHE,
    HUB_CACHE_OF_HOST,
    IMAGE_HOME,
    NONE,
    PROGRAMS,
    ContainerProgram,
    choose_image,
    command_line_in_image,
    list_paths_to_mount,
)
from workbench.engines.model_facts import is_model_path
from workbench.hosts.base import CommandTimeout, Completed, Host, container_program_timeout_error
from workbench.hosts.shell_scripts import shell_argv
from workbench.model.errors import HostError, ServerError
from workbench.model.findings import Finding, Level
from workbench.model.open_files import open_files_option
from workbench.model.plan import Command
from workbench.model.run_options import launcher_option_value, launcher_option_values
from workbench.model.run_options.containers import is_switch_on
from workbench.model.secrets import is_secret_name, mask_argv
from workbench.model.untrusted_numbers import parse_whole_number
from workbench.model.untrusted_text import as_list, as_table, clean_json, clean_text
from workbench.server import log_patterns
from workbench.server.launchers import container_scripts as scripts
from workbench.server.launchers.launcher import (
    AdoptableServer,
    Keeper,
    Launch,
    LaunchedServer,
    ServerExitState,
)

RUN_ID_LABEL = "workbench.run"
_CHECK_TIMEOUT_S = 30.0  # for the image and the program; a daemon that hangs never answers
_LIVING_STATES = frozenset(
    {"created", "configured", "initialized", "running", "paused", "restarting", "stopping"}
)
# Run options that docker and podman have under the same name.
_COMMON_RUN_OPTIONS = (
    *(
        "network",
        "ipc",
        "shm-size",
        "ulimit",
        "memory",
        "cpus",
        "cpuset-cpus",
        "user",
        "group-add",
        "workdir",
    ),
    *("platform", "device", "cap-add", "security-opt", "pid", "userns"),
)
_ASK_TIMEOUT_S = 30.0
_PULL_TIMEOUT_S = 4 * 3600.0  # for an image of tens of gigabytes
# docker and podman, about a container that does not exist
_NO_SUCH_CONTAINER = re.compile(
    r"no such (?:container|object)|no container with name", re.IGNORECASE
)
_SWITCH_OPTIONS = ("init", "privileged")
# The whole log is kept until the keeper has copied it: podman's default, the journal, drops lines
# of a busy server.
_LOG_OPTIONS = {
    "docker": ("--log-driver", "json-file", "--log-opt", "max-size=1t"),
    "podman": ("--log-driver", "k8s-file"),
}
# Variables that docker, podman or the keeper's shell would take for their own: they are passed with
# their values.
_VARIABLES_NOT_BY_NAME = re.compile(
    r"PATH|HOME|SHELL|ENV|BASH_ENV|IFS|CDPATH|PS4|TMPDIR|GODEBUG|GOMAXPROCS|GOGC|GOMEMLIMIT|GOTRACEBACK|"
    r"(?:LD|XDG|DOCKER|CONTAINER|CONTAINERS|PODMAN|BUILDAH|STORAGE|REGISTRY|wb)_\w*|_\w*|\d.*|.*[^A-Za-z0-9_].*|",
    re.DOTALL,
)


def launcher(name: str) -> Containers:
    return Containers(PROGRAMS[name])


class Containers:
    """The launcher that runs servers as containers of docker or podman."""

    looks_at = frozenset({"port"})  # the program is in the image
    stop_s = 90.0

    def __init__(self, program: ContainerProgram) -> None:
        self.program = program
        self.name = self.start_program_name = program.name

    async def _run_program(
        self, host: Host, argv: Sequence[str], limit_s: float, *, check: bool = False
    ) -> Completed:
        """Run a command of docker or podman, and return its result. Raises CommandTimeout, which
        names that program, after `limit_s` seconds, and with `check` CommandFailed."""
        try:
            return await host.run(argv, timeout_s=limit_s, check=check)
        except CommandTimeout:
            raise container_program_timeout_error(self.name, limit_s, host.name) from None

    # ---- what a start needs

    async def check(self, host: Host, launch: Launch) -> Sequence[Finding]:
        image = self._image_name(launch)
        found = [*self._option_findings(launch), *self._secret_findings(launch)]
        model = launch.plan.model if is_model_path(launch.plan.model) else ""
        cdi = is_switch_on(self._option_value(launch, "cdi"), self.program.cdi)
        gpus = "cdi" if cdi else "gpus"
        if self._option_value(launch, "gpus") == NONE or host.simulated:
            gpus = NONE
        words = (
            self.name,
            image,
            self.program.full_image_name(image),
            gpus,
            "" if host.simulated else model,
        )
        done = await self._run_program(
            host, shell_argv(scripts.CHECK_SCRIPT, *words), _CHECK_TIMEOUT_S, check=True
        )
        facts: dict[str, str] = {}
        for line in clean_text(done.stdout, lines=True).splitlines():
            key, _, value = line.partition(" ")
            facts[key] = f"{facts[key]}\n{value}" if key in facts else value
        return [*self._host_findings(facts, image, model, launch), *found]

    async def fetch_image(self, host: Host, launch: Launch) -> None:
        """Pull the image of the server if the host lacks it, or if the option `pull` is "always",
        but not if that is "never". Raises ServerError if it cannot be pulled."""
        image, pull = self._image_name(launch), self._option_value(launch, "pull")
        source = self.program.full_image_name(image)
        platform = self._option_value(launch, "platform")
        done = await host.run(
            shell_argv(scripts.FETCH_IMAGE_SCRIPT, self.name, image, source, pull, platform),
            timeout_s=_PULL_TIMEOUT_S,
        )
        if done.returncode != 0:
            raise ServerError(
                f"the image {source} could not be pulled: {done.problem}",
                host=host.name,
                command=f"{self.name} pull {source}",
                next_step="correct the name of the image; the server that runs was not stopped",
            )

    def _host_findings(
        self, facts: Mapping[str, str], image: str, model: str, launch: Launch
    ) -> Iterator[Finding]:
        if "missing" in facts:
            yield _error_finding(
                "program",
                f"{self.name} is not installed",
                f"install {self.name}, or start it with --as process",
            )
        if problem := facts.get("problem"):
            text = f"{self.name} does not work: {problem.splitlines()[-1]}"
            yield _error_finding("program", text, self._fix_for_output(problem))
        if "no-model" in facts:
            fix = "correct the model path, or give a Hugging Face id"
            yield _error_finding("model", f"model path {model} does not exist", fix)
        if "no-gpu" in facts:
            fix = "install NVIDIA's driver, or start without GPUs: --run-option gpus=none"
            yield _error_finding(
                "no-gpu", "the host has no NVIDIA GPU that a container could use", fix
            )
        elif "no-cdi" in facts:
            fix = "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
            if self.program.cdi is False:
                fix = f"{fix}; or leave out the option cdi"
            yield _error_finding(
                "no-cdi", "no CDI file names the host's GPUs, so a container cannot get them", fix
            )
        if why := facts.get("unsure"):
            text = f"{self.name} image inspect does not say whether {image} is on this host: {why}"
            yield Finding(
                Level.WARN,
                "container.image-unsure",
                text,
                fix=f"try: {self.name} image inspect {image}",
            )
        elif not problem and "missing" not in facts and "image" not in facts:
            if self._option_value(launch, "pull") == "never":
                fix = (
                    f"{self.name} pull {self.program.full_image_name(image)}, or leave out the "
                    "option pull"
                )
                yield _error_finding("image", f"the image {image} is not on this host", fix)
            else:
                yield Finding(
                    Level.INFO,
                    "container.pull",
                    f"the image {image} is not on this host, so it is pulled before the server "
                    "starts",
                )
        if "@sha256:" not in image:
            text = f"the image {image} is not pinned: the same name can mean another image later"
            digest = next(
                (word for word in facts.get("image", "").split() if "@sha256:" in word),
                "NAME@sha256:…",
            )
            yield Finding(Level.HINT, "container.not-pinned", text, fix=f"set image={digest}")
        is_rootless = self.name == "podman" and facts.get("uid", "0") != "0"
        if is_rootless and facts.get("linger") == "no":
            text = "the container ends when this user's last session on the host ends"
            yield Finding(
                Level.WARN,
                "container.linger",
                text,
                fix="run this command once on the host: loginctl enable-linger",
            )

    def _fix_for_output(self, output: str) -> str:
        """Return the fix for what docker or podman has printed on stderr."""
        for finding in log_patterns.explain_lines(output.splitlines()):
            if finding.fix is not None:
                return finding.fix
        return f"try: {self.name} ps"

    def _option_findings(self, launch: Launch) -> Iterator[Finding]:
        plan, network = launch.plan, self._option_value(launch, "network")
        if network != "host" and launch.address not in ("0.0.0.0", "::"):
            text = (
                f"in the network {network!r} a server that binds to {launch.address} cannot "
                "be reached"
            )
            yield _error_finding(
                "network",
                text,
                "set host=0.0.0.0; the port is published on this host's 127.0.0.1 only",
            )
        gpus = self._option_value(launch, "gpus")
        visible = launch.env.get("CUDA_VISIBLE_DEVICES")
        if visible is not None and gpus not in ("all", NONE):
            text = (
                f"the container gets only the GPUs {gpus}; CUDA_VISIBLE_DEVICES={visible} "
                "numbers these GPUs from 0"
            )
            yield Finding(
                Level.WARN,
                "container.gpus",
                text,
                fix="remove CUDA_VISIBLE_DEVICES from the plan, or use --run-option gpus=all",
            )
        if is_model_path(plan.model) and not plan.model.startswith("/"):
            fix = "give the model as an absolute path, or as a Hugging Face id"
            yield _error_finding(
                "model",
                f"the model {plan.model} is a relative path, which a container does not see",
                fix,
            )
        for path in list_paths_to_mount(plan):
            if ":" in path and not {",", '"'}.isdisjoint(path):
                text = (
                    f"{path} cannot be mounted, because its name has a colon and a comma or quote"
                )
                yield _error_finding(
                    "mount",
                    text,
                    "rename the file or directory, or use a link to it with a plain name",
                )
        if plan.executable and plan.executable_from != "given":
            text = f"the program {' '.join(plan.executable)} is not used: the image has its own"
            yield Finding(
                Level.INFO,
                "container.executable",
                text,
                fix="to run another program of the image, use `workbench start PRESET --executable PROGRAM`",
            )

    def _secret_findings(self, launch: Launch) -> Iterator[Finding]:
        argv, env = self._command_in_container(launch)
        if mask_argv(argv) != tuple(argv):
            text = (
                f"a secret is on the command line: `ps` and `{self.name} inspect` show it to "
                "other users"
            )
            yield Finding(
                Level.WARN,
                "container.secret",
                text,
                fix="pass the secret as an environment variable or in a file",
            )
        names = [name for name, value in env.items() if is_secret_name(name) and value]
        if shown := [name for name in names if _VARIABLES_NOT_BY_NAME.fullmatch(name)]:
            text = (
                f"{', '.join(shown)}: the value is on the command line, where `ps` shows it "
                "to other users, because "
            )
            text += f"{self.name} or a shell would take a variable of that name for its own"
            yield Finding(
                Level.WARN,
                "container.secret",
                text,
                fix="use another name for this environment variable, if the engine accepts one",
            )
        if names:
            text = (
                f"{', '.join(names)}: whoever may use {self.name} on this host can read it with "
                f"`{self.name} inspect`"
            )
            yield Finding(Level.INFO, "container.secret", text, fix=_SECRET_FIX)

    # ---- the words of the container

    def _option_value(self, launch: Launch, name: str) -> str:
        return launcher_option_value(self.name, launch.plan.run_options, name)

    def _option_values(self, launch: Launch, name: str) -> tuple[str, ...]:
        return launcher_option_values(self.name, launch.plan.run_options, name)

    def _image_name(self, launch: Launch) -> str:
        return choose_image(launch.plan, _engine_of_launch(launch))

    def _command_in_container(self, launch: Launch) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return (command line, environment) of the server in the container. An API key is moved
        from the command line to the environment variable of the engine, if it has one."""
        engine, plan = _engine_of_launch(launch), launch.plan
        argv = launch.argv
        if plan.executable_from != "given":
            argv = command_line_in_image(plan, engine, argv)
        return _move_key_to_environment(engine, argv, launch.env)

    def _run_arguments(self, launch: Launch) -> list[str]:
        """Return the arguments of `docker run` or `podman run` before the image, without the mounts
        of the model and of the hub cache."""
        argv, env = self._command_in_container(launch)
        words = [
            "--detach",
            "--name",
            container_name(launch.run_id),
            "--label",
            f"{RUN_ID_LABEL}={launch.run_id}",
        ]
        words += [*_LOG_OPTIONS[self.name], *self.program.limits]
        cdi = self._option_value(launch, "cdi")
        words += self.program.gpu_options(
            self._option_value(launch, "gpus"), is_switch_on(cdi) if cdi else None
        )
        for name in _COMMON_RUN_OPTIONS:
            words += _repeat_option(f"--{name}", self._option_values(launch, name))
        for name in _SWITCH_OPTIONS:
            if is_switch_on(self._option_value(launch, name)):
                words.append(f"--{name}")
        own_memory = self._option_value(launch, "ipc") != "host"
        if own_memory and not self._option_value(launch, "shm-size"):
            words += ("--shm-size", SHM_SIZE)
        if self._option_value(launch, "network") != "host":
            words += ("--publish", f"127.0.0.1:{launch.port}:{launch.port}")
        if launch.open_files:
            words += ("--ulimit", open_files_option(launch.open_files))
        if any(launch.run_dir in word for word in argv):
            words += ("--volume", f"{launch.run_dir}:{launch.run_dir}:ro")
        words += _repeat_option("--volume", self._option_values(launch, "mount"))
        by_name = _variables_passed_by_name(env)
        for name, value in env.items():
            words += ("--env", name if name in by_name else f"{name}={value}")
        return [*words, "--entrypoint", argv[0]]

    def _hub_cache_in_container(self, launch: Launch) -> str:
        """Return the path in the container at which the host's Hugging Face cache is mounted; "" if
        it is not mounted, because the model is a path or the user does not want it."""
        given = self._option_value(launch, "hub-cache")
        if given:
            return "" if given == NONE else given
        if is_model_path(launch.plan.model):
            return ""
        return launch.env.get("HF_HOME") or f"{IMAGE_HOME}/{HUB_CACHE}"

    def command(self, launch: Launch) -> Command:
        """Return the `docker run` or `podman run` command that is shown to the user."""
        argv, env = self._command_in_container(launch)
        cache = self._hub_cache_in_container(launch)
        words = [self.name, "run", *self._run_arguments(launch)]
        mounts = [f"{path}:{path}:ro" for path in list_paths_to_mount(launch.plan)]
        if cache:
            mounts.append(f"{HUB_CACHE_OF_HOST}:{cache}")
        words += _repeat_option("--volume", mounts)
        words += (self.program.full_image_name(self._image_name(launch)), *argv[1:])
        return Command(
            tuple(words), _variables_passed_by_name(env), host=launch.address, port=launch.port
        )

    # ---- keepers

    def make_keeper(self, launch: Launch) -> Keeper:
        argv, env = self._command_in_container(launch)
        image, words, paths = (
            self._image_name(launch),
            self._run_arguments(launch),
            list_paths_to_mount(launch.plan),
        )
        pull, platform = self._option_value(launch, "pull"), self._option_value(launch, "platform")
        start = (
            image,
            self.program.full_image_name(image),
            pull,
            platform,
            self._hub_cache_in_container(launch),
        )
        script = self._keeper_script_argv(launch, container_name(launch.run_id), "start")
        counted = (str(len(paths)), *paths, str(len(words)), *words)
        return Keeper((*script, *start, *counted, *argv[1:]), _variables_passed_by_name(env))

    def make_adopting_keeper(self, launch: Launch, handle: str) -> Keeper:
        mode = "keep" if handle == container_name(launch.run_id) else "follow"
        return Keeper(self._keeper_script_argv(launch, handle, mode))

    def _keeper_script_argv(self, launch: Launch, handle: str, mode: str) -> tuple[str, ...]:
        gpus = self._option_value(launch, "gpus")
        given = gpus if gpus not in ("all", NONE) else ""
        return shell_argv(
            scripts.KEEPER_SCRIPT, launch.run_id, handle, self.name, mode, launch.run_dir, given
        )

    async def read_exit_state(
        self, host: Host, launch: Launch, launched: LaunchedServer
    ) -> ServerExitState:
        """Ask docker or podman for the state of the run's container. `lives` is True also for a
        container of Workbench that has exited but exists: a keeper, the process that follows the
        server, must then copy its log and its exit code. Raises HostError without an answer."""
        own = container_name(launch.run_id)
        handle = launched.handle
        argv = shell_argv(
            scripts.ASK_SCRIPT,
            launch.run_id,
            "" if handle == own else handle,
            self.name,
            launch.run_dir,
        )
        done = await self._run_program(host, argv, _ASK_TIMEOUT_S, check=True)
        kind, *words = done.out.split() or ("",)
        if kind == "own":
            return ServerExitState(True, handle=own)
        if kind == "foreign":
            text = (
                f"the container {own} is gone; another container has its name now, which this "
                "run did not start"
            )
            return ServerExitState(False, handle=own, ended=f"{text}: {words[0][:12]}")
        if kind == "other":
            if words[0] in _LIVING_STATES:
                return ServerExitState(True, handle=handle)
            code = parse_whole_number(words[1])
            return ServerExitState(
                False,
                handle=handle,
                ended=f"the container exited with code {words[1]}",
                exit_code=code,
            )
        missing = f"the container {handle or own} is gone"
        if launched.began_unix_s is None:
            missing = "its keeper was lost before the server started"
        return ServerExitState(False, handle=handle, ended=missing)

    async def stop(self, host: Host, launch: Launch, launched: LaunchedServer) -> None:
        grace = self._option_value(launch, "grace")
        argv = shell_argv(scripts.STOP_SCRIPT, launch.run_id, self.name, grace, launch.run_dir)
        done = await self._run_program(host, argv, self.stop_s + int(grace))
        if done.returncode != 0:
            raise ServerError(
                f"{self.name} could not stop the container of run {launch.run_id}: {done.problem}",
                host=host.name,
                command=f"{self.name} stop {container_name(launch.run_id)}",
                next_step=self._fix_for_output(done.err),
            )

    def restart_command(self, launch: Launch, launched: LaunchedServer) -> tuple[str, ...]:
        """Return (): Workbench removes a container that has ended, and restarts none."""
        return ()

    async def restart(self, host: Host, launch: Launch, launched: LaunchedServer) -> None:
        raise ServerError(
            f"the server of run {launch.run_id} cannot be restarted: Workbench does not restart "
            "containers",
            host=host.name,
            next_step="stop the run, then start the server again from its preset",
        )

    # ---- containers that others started

    def installed_unit_name(self, launch: Launch) -> str | None:
        return None

    async def uninstall_and_list_removed(
        self, host: Host, launch: Launch, launched: LaunchedServer
    ) -> Sequence[str]:
        return ()

    async def find_adoptable(
        self, host: Host, handle: str, options: Mapping[str, str]
    ) -> AdoptableServer:
        if handle.startswith("-"):
            raise _no_container_error(handle, self.name, host)
        done = await self._run_program(
            host, [self.name, "container", "inspect", handle], _ASK_TIMEOUT_S
        )
        if done.returncode != 0 and _NO_SUCH_CONTAINER.search(done.err):
            raise _no_container_error(handle, self.name, host, done.problem)
        if done.returncode != 0:
            raise _no_answer_error(handle, self.name, host, done.problem)
        return _parse_adoptable(handle, done.stdout, self.name, host)


SHM_SIZE = "16g"
_SECRET_FIX = (
    "only root and members of its group can use docker; a rootless podman is its user's own"
)


def container_name(run_id: str) -> str:
    return f"workbench-{run_id}"


def _repeat_option(option: str, values: Iterable[str]) -> list[str]:
    """Return the arguments that give `option` once with each of `values`."""
    return [word for value in values for word in (option, value)]


def _variables_passed_by_name(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables in `env` whose values docker or podman takes from its own environment,
    so that they are not on its command line."""
    return {
        name: value for name, value in env.items() if not _VARIABLES_NOT_BY_NAME.fullmatch(name)
    }


def _engine_of_launch(launch: Launch) -> Engine:
    return registry.get_engine(launch.plan.engine)


def _error_finding(code: str, text: str, fix: str) -> Finding:
    return Finding(Level.ERROR, f"container.{code}", text, fix=fix)


def _move_key_to_environment(
    engine: Engine, argv: Sequence[str], env: Mapping[str, str]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return (command line, environment) with the value of --api-key moved from `argv` to the
    environment variable that the engine reads. Both are unchanged without such a flag or variable,
    and if the flag has several values."""
    unchanged = tuple(argv), dict(env)
    if engine.api_key_env is None:
        return unchanged
    for at, word in enumerate(argv):
        flag, equals, value = word.partition("=")
        if flag != "--api-key":
            continue
        key, rest = [value], argv[at + 1 :]
        if not equals:
            key, rest = list(rest[:1]), rest[1:]
        is_followed_by_flag = not rest or rest[0].startswith("--")  # one key, not several
        if key and is_followed_by_flag:
            return (*argv[:at], *rest), {**env, engine.api_key_env: key[0]}
    return unchanged


def _no_container_error(
    handle: str, program: str, host: Host, problem: str = "no such container"
) -> ServerError:
    return ServerError(
        f"{program} has no container {handle!r}: {problem}",
        host=host.name,
        command=shlex.join((program, "container", "inspect", handle)),
        next_step=f"`{program} ps` lists the containers",
    )


def _no_answer_error(handle: str, program: str, host: Host, problem: str) -> ServerError:
    return ServerError(
        f"{program} does not report the container {handle!r}: {problem}",
        host=host.name,
        command=shlex.join((program, "container", "inspect", handle)),
        next_step=f"`{program} info` shows whether {program} answers you on this host",
    )


def _parse_adoptable(handle: str, answer: bytes, program: str, host: Host) -> AdoptableServer:
    """Return the running server in the container `handle` from `answer`, the JSON that `container
    inspect` printed. Raises ServerError if the container does not run, and HostError if the JSON
    has another form."""
    try:
        it = clean_json(answer)[0]
        if not it["State"]["Running"]:
            raise _no_container_error(handle, program, host, f"it is {it['State']['Status']}")
        argv = (it["Path"], *as_list(it.get("Args")))
        env = dict(pair.partition("=")[::2] for pair in as_list(it["Config"].get("Env")))
        network = as_table(it.get("NetworkSettings"))
        published = _published_port(as_table(network.get("Ports")))
        return AdoptableServer(
            handle=str(it["Name"]).lstrip("/") or handle,
            argv=tuple(map(str, argv)),
            env=env,
            workdir=_text_or_none(it["Config"].get("WorkingDir")),
            address="127.0.0.1" if published else _text_or_none(network.get("IPAddress")),
            port=published,
            image=_text_or_none(it.get("ImageName")) or _text_or_none(it["Config"].get("Image")),
        )
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise HostError(
            f"`{program} container inspect {handle}` printed JSON that Workbench does not "
            f"understand: {error}",
            host=host.name,
        ) from None


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _published_port(ports: Mapping[str, Any]) -> int | None:
    """Return the port of the host that leads to the container, by `ports` of `container inspect`.
    None if there is none, or more than one."""
    found = {binding["HostPort"] for bindings in ports.values() for binding in as_list(bindings)}
    if len(found) != 1:
        return None
    return parse_whole_number(str(found.pop()), 5)
