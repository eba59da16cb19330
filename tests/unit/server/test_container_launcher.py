"""Servers as containers, against stand-ins for docker and podman: every word and variable arrives
as it is, and what is against a start is named.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import container_runs
from support.fake_host import Call, FakeHost

from workbench.engines import registry
from workbench.engines.containers import choose_image, parse_version_in_tag
from workbench.engines.preset_trust import list_untrusted_parts
from workbench.hosts.base import format_command_for_message
from workbench.hosts.local import LocalHost
from workbench.hosts.shell_scripts import shell_command_line
from workbench.model.errors import HostError, InputError, ServerError, WorkbenchError
from workbench.model.findings import Finding, Level
from workbench.model.flags import FlagSetting
from workbench.model.plan import LaunchPlan
from workbench.model.run_options import with_launcher_and_options
from workbench.server import log_patterns
from workbench.server.launchers import containers
from workbench.server.launchers.containers import Containers, launcher
from workbench.server.launchers.launcher import (
    Launch,
    LaunchedServer,
    launch_from_command,
    parse_launched,
)

RUN = "20261122-200000-vllm-abcd"
TEXT = st.text(
    st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=12
) | st.sampled_from(
    [
        "a b",
        "'",
        '"',
        "$HOME",
        "$(touch x)",
        "a\nb",
        "`x`",
        "\\",
        "ä€😀",
        "-d",
        "--privileged",
        "*",
        "~",
        "!",
        "\t",
        "",
    ]
)
NAMES = st.sampled_from(
    ["PATH", "HOME", "LD_PRELOAD", "_", "wb_dir", "name", "image", "IFS", "a.b"]
) | st.from_regex(r"[A-Z][A-Z_]{0,8}", fullmatch=True)
PATHS = st.text(
    st.characters(blacklist_characters="\0\n\r/:", blacklist_categories=["Cs", "Cc"]),
    min_size=1,
    max_size=8,
)


def launch(
    plan: LaunchPlan,
    word: str = "podman",
    options: list[str] | None = None,
    run_dir: str = "/runs/one",
) -> Launch:
    plan = with_launcher_and_options(plan, word, options or [])
    return launch_from_command(RUN, run_dir, plan, registry.get_engine(plan.engine).command(plan))


def pairs(words: tuple[str, ...] | list[str], option: str) -> list[str]:
    return [words[at + 1] for at, word in enumerate(words[:-1]) if word == option]


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return container_runs.install(tmp_path_factory.mktemp("programs"), code=7)


@pytest.mark.parametrize("word", ["docker", "podman"])
@settings(max_examples=30)
@given(data=st.data())
def test_every_word_variable_and_path_survives(
    word: str, data: st.DataObject, stand_in: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Through the keeper's script and the shell line that ssh hosts read, to the words that docker
    and podman get."""
    argv = data.draw(st.lists(TEXT, max_size=5))
    env = data.draw(st.dictionaries(NAMES, TEXT, max_size=4))
    mounts = [f"/{a}:/{b}:ro" for a, b in data.draw(st.lists(st.tuples(PATHS, PATHS), max_size=2))]
    run_dir = tmp_path_factory.mktemp("run")
    (run_dir / "log").touch()
    model = run_dir / data.draw(
        PATHS.filter(lambda name: name not in (".", "..") and len(name.encode()) < 200)
    )
    model.mkdir(exist_ok=True)
    plan = LaunchPlan("vllm", str(model), executable=("/opt/engine",), executable_from="given")
    one = launch(plan, word, [f"mount={mount}" for mount in mounts], str(run_dir))
    one = Launch(one.run_id, one.run_dir, one.plan, ("/opt/engine", *argv), env, port=8000)

    keeper = launcher(word).make_keeper(one)
    line = shell_command_line(keeper.argv, keeper.env)
    path = f"{stand_in}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", line],
        env={"PATH": path, "HOME": str(run_dir)},
        capture_output=True,
        timeout=30,
    )
    assert done.returncode == 7, done.stderr

    words, environ = container_runs.recorded(stand_in)
    entry = words.index("--entrypoint")
    assert words[entry + 1] == "/opt/engine"
    assert words[entry + 2 :] == ["sha256:1234", *argv]
    assert pairs(words[:entry], "--volume") == [f"{model}:{model}:ro", *mounts]
    given = {}
    for text in pairs(words[:entry], "--env"):
        name, equals, value = text.partition("=")
        given[name] = value if equals else environ[name]
    assert given == env


def test_the_keeper_reports_the_pinned_image_and_the_exit_code(
    stand_in: Path, tmp_path: Path
) -> None:
    (tmp_path / "log").touch()
    one = launch(
        LaunchPlan("vllm", "org/Model"),
        options=["gpus=0,1", "image=repo:tag"],
        run_dir=str(tmp_path),
    )
    keeper = launcher("podman").make_keeper(one)
    env = {"PATH": f"{stand_in}:{os.environ['PATH']}", "HOME": str(tmp_path), **keeper.env}
    done = subprocess.run(keeper.argv, env=env, capture_output=True, timeout=30)
    assert (done.returncode, done.stderr) == (7, b"")
    assert done.stdout == b"a line of the container\n"
    launched = parse_launched((tmp_path / "launched").read_bytes())
    assert launched is not None
    assert launched.image == f"repo:tag@{container_runs.DIGEST}"
    assert (launched.handle, launched.state, launched.gpus) == (
        f"workbench-{RUN}",
        "exited",
        ("0", "1"),
    )
    assert (launched.exit_code, launched.ended) == (7, "the container exited with code 7")
    words, _ = container_runs.recorded(stand_in)
    assert f"{tmp_path}/.cache/huggingface:/root/.cache/huggingface" in pairs(words, "--volume")
    assert words[-len(one.argv) :][0] == "sha256:1234"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"XDG_CACHE_HOME": "{}/xdg"}, "{}/xdg/huggingface"),
        ({"XDG_CACHE_HOME": "{}/xdg", "HF_HOME": "{}/hf"}, "{}/hf"),
    ],
)
def test_the_keeper_mounts_the_cache_that_the_shown_command_names(
    variables: dict[str, str], expected: str, stand_in: Path, tmp_path: Path
) -> None:
    (tmp_path / "log").touch()
    one = launch(LaunchPlan("vllm", "org/Model"), options=["image=repo:tag"], run_dir=str(tmp_path))
    set_variables = {name: value.format(tmp_path) for name, value in variables.items()}
    keeper = launcher("podman").make_keeper(one)
    env = {
        "PATH": f"{stand_in}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        **keeper.env,
        **set_variables,
    }
    subprocess.run(keeper.argv, env=env, capture_output=True, timeout=30)
    words, _ = container_runs.recorded(stand_in)
    mounted = next(v for v in pairs(words, "--volume") if v.endswith(":/root/.cache/huggingface"))
    shown = next(
        v
        for v in pairs(launcher("podman").command(one).argv, "--volume")
        if v.endswith(":/root/.cache/huggingface")
    )
    by_shell = subprocess.run(
        ["sh", "-c", f'printf %s "{shown}"'], env=env, capture_output=True, text=True, timeout=30
    )
    assert mounted == by_shell.stdout == f"{expected.format(tmp_path)}:/root/.cache/huggingface"


@pytest.mark.parametrize(
    ("word", "options", "expected"),
    [
        ("docker", [], ["--gpus", "all"]),
        ("docker", ["gpus=2"], ["--gpus", "device=2"]),
        ("docker", ["gpus=0,1"], ["--gpus", '"device=0,1"']),
        ("docker", ["gpus=0", "cdi=yes"], ["--device", "nvidia.com/gpu=0"]),
        ("podman", [], ["--device", "nvidia.com/gpu=all", "--security-opt", "label=disable"]),
        ("podman", ["gpus=0,1"], ["--device", "nvidia.com/gpu=0", "--device", "nvidia.com/gpu=1"]),
        ("podman", ["ipc=host"], ["--ipc", "host"]),
        ("podman", ["shm-size=32g"], ["--shm-size", "32g"]),
        (
            "podman",
            ["ulimit=memlock=-1", "ulimit=stack=1:2"],
            ["--ulimit", "memlock=-1", "--ulimit", "stack=1:2"],
        ),
        ("podman", ["network=bridge"], ["--publish", "127.0.0.1:8000:8000"]),
        ("podman", ["init=yes"], ["--init"]),
        ("podman", [], ["--network", "host", "--shm-size", "16g"]),
    ],
)
def test_options_become_words(word: str, options: list[str], expected: list[str]) -> None:
    words = launcher(word).command(launch(LaunchPlan("vllm", "m"), word, options)).argv
    text = "\0".join(words)
    assert "\0".join(expected) in text


def test_without_gpus_nothing_asks_for_them() -> None:
    for word in ("docker", "podman"):
        words = launcher(word).command(launch(LaunchPlan("vllm", "m"), word, ["gpus=none"])).argv
        assert not {"--gpus", "--device"} & set(words)


def test_nothing_is_privileged_without_the_plan() -> None:
    for word in ("docker", "podman"):
        words = (
            launcher(word).command(launch(LaunchPlan("vllm", "m"), word, ["privileged=no"])).argv
        )
        assert not {"--privileged", "--cap-add", "--pid", "--userns"} & set(words)


def test_an_api_key_is_a_variable_and_on_no_command_line() -> None:
    plan = LaunchPlan("vllm", "m", flags=(FlagSetting("api-key", "sk-abcdefghijklmnop"),))
    keeper = launcher("docker").make_keeper(launch(plan, "docker"))
    assert "sk-abcdefghijklmnop" not in "".join(keeper.argv)
    assert keeper.env == {"VLLM_API_KEY": "sk-abcdefghijklmnop"}
    assert "--api-key" not in keeper.argv
    assert "VLLM_API_KEY" in pairs(keeper.argv, "--env")


def test_the_hub_cache_is_mounted_for_a_hub_id_only() -> None:
    def cache(model: str, *options: str) -> str:
        return launcher("podman")._hub_cache_in_container(
            launch(LaunchPlan("vllm", model), options=list(options))
        )

    assert cache("org/Model") == "/root/.cache/huggingface"
    assert cache("/models/a") == ""
    assert cache("/models/a", "hub-cache=/cache") == "/cache"
    assert cache("org/Model", "hub-cache=none") == ""


def check(plan: LaunchPlan, answer: str, *options: str, word: str = "podman") -> list[Finding]:
    host = FakeHost(lambda call: answer)
    return list(asyncio.run(launcher(word).check(host, launch(plan, word, list(options)))))


def errors(found: list[Finding]) -> list[str]:
    return [finding.text for finding in found if finding.level is Level.ERROR]


HUB = LaunchPlan("vllm", "org/Model")


@pytest.mark.parametrize(
    ("answer", "text", "fix"),
    [
        ("missing\n", "podman is not installed", "--as process"),
        (
            "problem Cannot connect to the Docker daemon at unix:///x.sock. Is the docker daemon "
            "running?\n",
            "Is the docker daemon running?",
            "systemctl start docker",
        ),
        (
            "problem permission denied while trying to connect to the Docker daemon socket at "
            "unix:///x\n",
            "permission denied",
            "usermod -aG docker",
        ),
        ("uid 0\nno-gpu\n", "no NVIDIA GPU", "gpus=none"),
        ("uid 0\nno-cdi\n", "no CDI file", "nvidia-ctk cdi generate"),
        ("uid 0\nno-model\n", "does not exist", "model path"),
    ],
)
def test_what_is_against_a_start_is_named(answer: str, text: str, fix: str) -> None:
    found = [f for f in check(replace_model(answer), answer) if f.level is Level.ERROR]
    assert len(found) == 1
    assert text in found[0].text
    assert found[0].fix is not None and fix in found[0].fix


def replace_model(answer: str) -> LaunchPlan:
    return LaunchPlan("vllm", "/models/a") if "no-model" in answer else HUB


def test_findings_about_the_plan_itself() -> None:
    fine = "uid 0\nimage linux/amd64 repo@sha256:12\n"
    assert errors(check(HUB, fine)) == []
    assert "cannot be reached" in errors(check(HUB, fine, "network=bridge"))[0]
    assert "relative path" in errors(check(LaunchPlan("vllm", "./a"), fine))[0]
    assert "not on this host" in errors(check(HUB, "uid 0\n", "pull=never"))[0]
    codes = {finding.code: finding for finding in check(HUB, "uid 1000\nlinger no\n")}
    assert codes["container.linger"].level is Level.WARN
    assert codes["container.pull"].level is Level.INFO
    unsure = {
        finding.code: finding
        for finding in check(HUB, "uid 0\nunsure it was ended by signal 9\n", "pull=never")
    }
    assert unsure["container.image-unsure"].level is Level.WARN and "container.pull" not in unsure
    assert not [code for code, finding in unsure.items() if finding.level is Level.ERROR]
    secret = LaunchPlan("vllm", "m", env=(FlagSetting("HF_TOKEN", "hf_abcdefghijklmnop"),))
    assert "podman inspect" in {f.code: f.text for f in check(secret, fine)}["container.secret"]
    odd = LaunchPlan("vllm", "m", env=(FlagSetting("DOCKER_TOKEN", "abcdefghijklmnop"),))
    assert any("DOCKER_TOKEN: the value is on the command line" in f.text for f in check(odd, fine))
    gpus = HUB.with_env("CUDA_VISIBLE_DEVICES", "2,3")
    assert (
        "numbers these GPUs from 0"
        in {f.code: f.text for f in check(gpus, fine, "gpus=2,3")}["container.gpus"]
    )


@pytest.mark.parametrize(
    "option",
    [
        *("privileged=yes", "device=/dev/sda", "cap-add=SYS_ADMIN", "pid=host", "userns=host"),
        *(
            "mount=/:/host",
            "mount=/etc:/etc:ro",
            "mount=//:/x",
            "mount=/dev/../:/x",
            "security-opt=seccomp=unconfined",
        ),
        *(
            "mount=/var/run/docker.sock:/var/run/docker.sock",
            "mount=/run/user/1000/podman/podman.sock:/s",
        ),
    ],
)
def test_power_over_the_host_needs_trust_whoever_set_it(option: str) -> None:
    plan = with_launcher_and_options(HUB, "podman", [option])
    (part,) = list_untrusted_parts(plan, ())
    assert part.code == "run.power"
    assert list_untrusted_parts(plan, [part.digest]) == ()


def test_harmless_options_need_no_trust_and_a_strangers_image_does() -> None:
    plan = with_launcher_and_options(
        HUB, "docker", ["mount=/data:/data", "device=nvidia.com/gpu=0", "gpus=0", "init=yes"]
    )
    assert list_untrusted_parts(plan, ()) == ()
    foreign = LaunchPlan("vllm", "m", image="evil/vllm:1", run_as="docker", stranger=True)
    assert [part.name for part in list_untrusted_parts(foreign, ())] == ["image"]
    usual = LaunchPlan(
        "vllm", "m", image="docker.io/vllm/vllm-openai:v0.32.0", run_as="docker", stranger=True
    )
    assert list_untrusted_parts(usual, ()) == ()


def test_bad_options_are_refused() -> None:
    for bad in (
        "mount=relative:/x",
        "mount=/a",
        "gpus=0;rm",
        "image=-x",
        "shm-size=lots",
        "grace=-1",
        "pull=maybe",
    ):
        with pytest.raises(InputError):
            with_launcher_and_options(HUB, "docker", [bad])


# ---- what a launcher is asked


def asked(answer: str, launched: LaunchedServer) -> tuple[bool, str | None, int | None]:
    host = FakeHost(lambda call: answer)
    fate = asyncio.run(launcher("podman").read_exit_state(host, launch(HUB), launched))
    return fate.lives, fate.ended, fate.exit_code


def test_a_container_that_is_there_can_be_kept_again() -> None:
    """Also one that has ended: its log and its exit code are still to be taken."""
    assert asked(f"own workbench-{RUN}\n", LaunchedServer()) == (True, None, None)
    assert asked("other running 0\n", LaunchedServer("theirs")) == (True, None, None)
    assert asked("other exited 3\n", LaunchedServer("theirs")) == (
        False,
        "the container exited with code 3",
        3,
    )
    lives, ended, _ = asked("", LaunchedServer(f"workbench-{RUN}"))
    assert (lives, ended) == (False, "its keeper was lost before the server started")
    lives, ended, _ = asked("", LaunchedServer(f"workbench-{RUN}", began_unix_s=1.0))
    assert (lives, ended) == (False, f"the container workbench-{RUN} is gone")


INSPECT = {
    "Name": "/theirs",
    "Path": "vllm",
    "Args": ["serve", "org/Model", "--port", "8000"],
    "State": {"Running": True, "Status": "running"},
    "Config": {
        "Env": ["A=b=c", "VLLM_API_KEY=k"],
        "WorkingDir": "/app",
        "Image": "vllm/vllm-openai:v0.32.0",
    },
    "NetworkSettings": {
        "IPAddress": "172.17.0.2",
        "Ports": {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "8007"}]},
    },
}


def inspecting(document: object, code: int = 0) -> FakeHost:
    def answer(call: Call) -> str | int:
        return code or json.dumps([document])

    return FakeHost(answer)


def test_a_container_of_others_is_found_with_its_words_and_its_port() -> None:
    found = asyncio.run(launcher("docker").find_adoptable(inspecting(INSPECT), "theirs", {}))
    assert (found.handle, found.argv) == (
        "theirs",
        ("vllm", "serve", "org/Model", "--port", "8000"),
    )
    assert found.env == {"A": "b=c", "VLLM_API_KEY": "k"}
    assert (found.address, found.port, found.image) == (
        "127.0.0.1",
        8007,
        "vllm/vllm-openai:v0.32.0",
    )


@pytest.mark.parametrize(
    "wrong", [None, 1, 1.5, True, [], {}, [1], {"a": [{"HostPort": "9" * 5000}]}, "\x1b[31mx"]
)
@pytest.mark.parametrize(
    "where", ["Name", "Path", "Args", "State", "Config", "NetworkSettings", "ImageName"]
)
def test_whatever_inspect_answers_is_text_or_an_error(where: str, wrong: object) -> None:
    config = {**INSPECT["Config"], "Image": wrong, "WorkingDir": wrong}  # type: ignore[dict-item]
    for document in ({**INSPECT, where: wrong}, {**INSPECT, "Config": config}):
        try:
            found = asyncio.run(
                launcher("docker").find_adoptable(inspecting(document), "theirs", {})
            )
        except WorkbenchError:
            continue
        texts = (found.handle, *found.argv, found.workdir, found.address, found.image)
        assert all(text is None or (isinstance(text, str) and text.isprintable()) for text in texts)
        assert found.port is None or found.port < 100_000


@pytest.mark.parametrize("answer", ["", "nothing", "[" * 100_000, "[]", "{}"])
def test_an_answer_of_inspect_that_is_no_json_is_an_error(answer: str) -> None:
    with pytest.raises(WorkbenchError, match="does not understand"):
        asyncio.run(launcher("docker").find_adoptable(FakeHost(lambda call: answer), "theirs", {}))


@pytest.mark.parametrize(
    "host",
    [inspecting({}, 1), inspecting({**INSPECT, "State": {"Running": False, "Status": "exited"}})],
)
def test_a_container_that_is_not_there_or_does_not_run_is_named(host: FakeHost) -> None:
    with pytest.raises(ServerError, match="theirs"):
        asyncio.run(launcher("docker").find_adoptable(host, "theirs", {}))


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        ("Error: No such container: theirs", "docker has no container 'theirs'"),
        ("Cannot connect to the Docker daemon", "docker does not report the container 'theirs'"),
    ],
)
def test_a_daemon_that_does_not_run_is_no_missing_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: str, said: str
) -> None:
    program = tmp_path / "docker"
    program.write_text(f"#!/bin/sh\necho '{problem}' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(ServerError, match=f"{said}: .*{problem}"):
        asyncio.run(launcher("docker").find_adoptable(LocalHost(), "theirs", {}))


# ---- progress of a pull

SIZES = "3000000000 sha256:aaaaaaaaaaaa1111\n9400000000 sha256:bbbbbbbbbbbb2222\n"


@pytest.mark.parametrize(
    ("sizes", "output", "kib", "expected"),
    [
        ("", "", 0, "pulling the image"),
        (SIZES, "", 0, "pulling 0.0 of 12.4 GB"),
        (
            SIZES,
            "v1: Pulling from x\naaaaaaaaaaaa: Pulling fs layer\naaaaaaaaaaaa: Download complete\n",
            0,
            "pulling 3.0 of 12.4 GB",
        ),
        (
            SIZES,
            "aaaaaaaaaaaa: Pull complete\nbbbbbbbbbbbb: Pull complete\n",
            0,
            "unpacking 12.4 GB",
        ),
        (SIZES, "aaaaaaaaaaaa: Already exists\n", 0, "pulling 3.0 of 12.4 GB"),
        (
            SIZES,
            "Copying blob sha256:aaaaaaaaaaaa1111 skipped: already exists\n",
            1000000,
            "pulling 4.0 of 12.4 GB",
        ),
        ("", "Copying blob sha256:aaaaaaaaaaaa1111\n", 2000000, "pulling, 2.0 GB so far"),
        (
            "",
            "aaaaaaaaaaaa: Pull complete\nbbbbbbbbbbbb: Pulling fs layer\n",
            0,
            "pulling, 1 of 2 layers",
        ),
        ("5000000 sha256:aaaaaaaaaaaa1111\n", "", 2000, "pulling 2 of 5 MB"),
    ],
)
@pytest.mark.parametrize("awk", ["mawk", "gawk", "busybox awk"])
def test_the_progress_of_a_pull(
    awk: str, sizes: str, output: str, kib: int, expected: str, tmp_path: Path
) -> None:
    from shutil import which

    from workbench.server.launchers.container_images import PROGRESS_SCRIPT

    if which(awk.split()[0]) is None:
        pytest.skip(f"{awk} is not installed")
    (tmp_path / "layers").write_text(sizes)
    (tmp_path / "pull").write_text(output)
    command = [*awk.split(), "-v", f"kib={kib}", PROGRESS_SCRIPT, "layers", "pull"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (expected, "")


# ---- the answers of registries and programs


LOGIN = "repository does not exist or may require 'docker login'"
NO_NAME = "dial tcp: lookup registry-1.docker.io: Temporary failure in name resolution"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (
            "Error response from daemon: manifest for a/b:v9 not found: manifest unknown",
            "image-not-found",
        ),
        (
            "Error: initializing source docker://q.io/a:1: reading manifest 1 in q.io/a: "
            "unauthorized: no",
            "image-unauthorized",
        ),
        (f"Error response from daemon: pull access denied for a/b, {LOGIN}", "image-unauthorized"),
        (
            f'Error: pinging container registry a: Get "https://a/v2/": {NO_NAME}',
            "registry-unreachable",
        ),
        (
            'Error: writing blob: storing blob to file "/x": write /x: no space left on device',
            "image-disk-full",
        ),
        ("exec /usr/bin/vllm: exec format error", "image-platform"),
        (
            "workbench: the image repo:tag is for linux/arm64, and this host is linux/amd64",
            "image-platform",
        ),
    ],
)
def test_known_answers_have_a_cause_and_a_fix(line: str, code: str) -> None:
    assert f"log.{code}" in {finding.code for finding in log_patterns.explain_lines([line])}


def test_launchers_are_of_their_program() -> None:
    assert [launcher(word).name for word in ("docker", "podman")] == ["docker", "podman"]
    assert isinstance(launcher("docker"), Containers)


def test_the_image_says_which_version_of_its_own_project_it_has() -> None:
    vllm = registry.get_engine("vllm")
    preset = LaunchPlan("vllm", "m", image="nvcr.io/nvidia/vllm:26.04-py3")
    assert choose_image(preset, vllm) == "nvcr.io/nvidia/vllm:26.04-py3"
    chosen = with_launcher_and_options(preset, "podman", ["image=vllm/vllm-openai:v0.32.0"])
    assert choose_image(chosen, vllm) == "vllm/vllm-openai:v0.32.0"
    assert parse_version_in_tag(choose_image(chosen, vllm), vllm) == "0.32.0"
    assert parse_version_in_tag(choose_image(preset, vllm), vllm) is None
    assert parse_version_in_tag("my/vllm:1.2.3", vllm) is None


@pytest.mark.parametrize(
    ("engine", "version", "image"),
    [
        ("vllm", "0.32.0", "vllm/vllm-openai:v0.32.0"),
        ("vllm", "0.32.0.dev4", "vllm/vllm-openai:latest"),  # not published as an image
        ("vllm", None, "vllm/vllm-openai:latest"),
        ("llamacpp", "1.2.3", "ghcr.io/ggml-org/llama.cpp:server-cuda"),  # has no tags of versions
    ],
)
def test_an_image_of_the_project_has_the_version_of_the_plan(
    engine: str, version: str | None, image: str
) -> None:
    plan = LaunchPlan(engine, "m", engine_version=version)
    assert choose_image(plan, registry.get_engine(engine)) == image


def test_a_program_that_hangs_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "podman").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "podman").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("workbench.server.launchers.containers._CHECK_TIMEOUT_S", 0.5)
    plan = LaunchPlan("vllm", "org/model")
    with pytest.raises(HostError) as caught:
        asyncio.run(launcher("podman").check(LocalHost(), launch(plan, "podman", ["image=a/b:1"])))
    assert caught.value.message == "podman did not answer within 0.5 s"
    assert caught.value.command == "podman ps" and caught.value.next_step


def test_a_script_of_workbench_is_left_out_of_a_message() -> None:
    assert (
        format_command_for_message(["sh", "-c", "a\nb", "sh", "an image"])
        == "sh -c ... sh 'an image'"
    )


@pytest.mark.parametrize("question", ["check", "find", "ask", "stop"])
def test_a_podman_that_hangs_is_one_sentence_without_a_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    hung = tmp_path / "podman"
    hung.write_text("#!/bin/sh\nexec sleep 60\n")
    hung.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name in ("_CHECK_TIMEOUT_S", "_ASK_TIMEOUT_S"):
        monkeypatch.setattr(containers, name, 0.5)
    monkeypatch.setattr(Containers, "stop_s", 0.5)
    own, started = launcher("podman"), launch(HUB, options=["grace=0"])
    host, launched = LocalHost(), LaunchedServer()
    work = {
        "check": lambda: own.check(host, started),
        "find": lambda: own.find_adoptable(host, "theirs", {}),
        "ask": lambda: own.read_exit_state(host, started, launched),
        "stop": lambda: own.stop(host, started, launched),
    }
    with pytest.raises(HostError, match=r"podman did not answer within 0\.5 s") as caught:
        asyncio.run(work[question]())
    assert caught.value.command == "podman ps" and "\n" not in caught.value.message
