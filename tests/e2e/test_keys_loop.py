"""The whole loop with keys alone, in a real pseudo-terminal on a simulated host, and what it
survives."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.command_line import ROOT, CommandLine
from support.serving import free_port
from support.typed_screen import TypedScreen

PROFILE, PRESET = "four-pcie", "vllm-qwen3-vl-2b-tp4-eager"
WIDE, NARROW = (120, 40), (80, 24)
COLOUR = re.compile(r"\x1b\[(?:[0-9;]*;)?(?:[34]8;[25];|3[0-7]|4[0-7]|9[0-7]|10[0-7])[0-9;]*m")

Open = Callable[..., TypedScreen]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[CommandLine]:
    """Commands on the same simulated host as the screen; its servers are ended after the test."""
    line = CommandLine(
        tmp_path,
        before=("--simulate", PROFILE),
        WORKBENCH_SIM_START_S="0.5",
        WORKBENCH_SIM_SPEEDUP="8",
        WORKBENCH_SIM_NOISE="0",
        TERM="xterm-256color",
        LANG="C.UTF-8",
    )
    own = Path(line.env["XDG_CONFIG_HOME"], "workbench", "presets", f"{PRESET}.toml")
    own.parent.mkdir(parents=True)
    shipped = (ROOT / "presets" / own.name).read_text()
    assert "port = 8004" in shipped
    # tests run side by side
    own.write_text(shipped.replace("port = 8004", f"port = {free_port()}"))
    yield line
    line.stop_all()


@pytest.fixture
def screen(host: CommandLine) -> Iterator[Open]:
    opened: list[TypedScreen] = []

    def open_screen(size: tuple[int, int] = WIDE, **env: str) -> TypedScreen:
        argv = ("demo", "--host-profile", PROFILE)
        opened.append(TypedScreen(argv, size, {**host.env, **env}, host.directory))
        return opened[-1]

    yield open_screen
    for one in opened:
        one.close()


def simulated(text: str) -> bool:
    return text.split("\n")[0].endswith("SIMULATED")


def single_run(host: CommandLine) -> dict[str, object]:
    runs = host.ok("servers")["servers"]
    assert [run["state"] for run in runs if run["ended_unix_s"] is None] == ["ready"], runs
    return dict(runs[0])


def start_server(s: TypedScreen) -> None:
    s.until("qwen3-vl-2b-tp4-eager", "4 x A100")
    s.press("p", "t", "p", "4", "enter")
    s.until("enforce-eager", "$ vllm serve")
    s.press("s", "enter")
    s.until("● READY vllm :")


def change_power(s: TypedScreen) -> None:
    s.press("g")
    s.until("GPU settings", "150..250 W")
    s.press("tab", "2", "0", "0", "enter")
    s.until("-pl 200", "run them")
    s.press("enter")
    s.until("250 → 200 W")


@pytest.mark.slow
@pytest.mark.parametrize(
    "size", [WIDE, pytest.param(NARROW, marks=pytest.mark.long)], ids=["120x40", "80x24"]
)
def test_the_whole_loop_with_at_most_40_keys(
    host: CommandLine, screen: Open, size: tuple[int, int]
) -> None:
    s = screen(size)
    narrow = size == NARROW
    s.until("SIMULATED", "qwen3-vl-2b-tp4-eager")

    s.press("p", "t", "p", "4", "enter")  # load
    s.until(
        "tensor-parallel-size", "ok 0 errors", lambda t: "qwen3-vl-2b-tp4-eager" in t.split("\n")[0]
    )
    s.press("/", "m", "n", "s", "enter")  # edit a flag
    s.until("Most sequences decoded in", "remove from the plan")
    s.press("6", "4", "enter")
    s.until(lambda t: re.search(r"\+ +max-num-seqs +(\S+ → )?64", t) is not None, "*1")

    s.press("s")  # the plan is shown first, then it starts
    s.until("Start vllm", "enter start", *([] if narrow else ["--max-num-seqs 64"]))
    s.press("enter")
    s.until("● READY vllm :")
    s.press("b")
    s.until("Benchmark", "streams at once")
    s.press("enter")
    s.until(lambda t: re.search(r"~ benchmark  measuring \d+/48", t) is not None)
    s.until(lambda t: re.search(r"1 qwen3-vl-2b-tp4-\S+ +[\d,]+ ", t) is not None)

    s.press("/", "e", "a", "g", "enter")  # change one thing
    s.until("No torch.compile", "off  (default)")
    s.press("down", "enter")
    s.until(lambda t: re.search(r"enforce-eager +(on → )?off", t) is not None, "*2")
    s.press(".")
    s.until("Restart with the plan", "enforce-eager: on → off", "so their answers are compared too")
    s.press("a", "enter")  # the answers take longer than the rest of the loop
    s.until("STARTING")
    text = s.until("A #1 vs B #2", "SIMULATED", "enforce-eager on → off", "single pair")
    if narrow:
        s.press("4")
    s.until(
        lambda t: re.search(r"B +2 enforce-eager=off", t) is not None,
        lambda t: re.search(r"A +1 qwen3-vl-2b-tp4-", t) is not None,
    )
    change = re.search(r"tok/s +([\d,.]+) +([\d,.]+) +\+([\d.]+) %", text)
    # CUDA graphs pay here: the right lesson
    assert change is not None and float(change[3]) > 50, text

    change_power(s)  # 7 keys
    if not narrow:
        s.until("GPU altered: power limit 250 → 200 W", "/200W")
    s.press("r")
    s.until("Reverted: GPU0-3: power limit 200 W back to 250 W", lambda t: "250 → 200 W" not in t)
    assert s.keys <= 40, s.keys
    assert host.ok("gpu", "status")["gpus"][0]["power_limit_w"] == 250

    s.press("q")
    s.until("Leave Workbench", "[leave running]")
    s.press("enter")
    assert s.ended() == 0
    run = single_run(host)
    assert host.ok("stop", str(run["run_id"]))["state"] == "stopped" and host.left() == []


@pytest.mark.long
@pytest.mark.slow
def test_a_killed_screen_leaves_a_server_that_the_next_one_adopts(
    host: CommandLine, screen: Open
) -> None:
    first = screen()
    start_server(first)
    change_power(first)
    first.kill()
    run = single_run(host)

    second = screen()
    second.until(
        "● READY vllm :",
        "GPU altered: power limit 250 → 200 W",
        "GPU settings that an earlier Workbench made are still on",
        f"Log  {str(run['run_id'])[-4:]}",  # beside its findings there is no room for the engine
    )
    second.until("Application startup complete", "tensor-parallel-size", "Workbench asked")
    second.press("q")
    second.until(
        "Leave Workbench", "GPU0-3: power limit 200 W, was 250 W", "[revert]", "[leave running]"
    )
    second.press("escape")
    second.until(lambda t: "Leave Workbench" not in t)
    second.press("q")
    second.until("[revert]")
    second.press("enter")
    assert second.ended() == 0
    assert host.ok("gpu", "status")["gpus"][3]["power_limit_w"] == 250
    assert single_run(host)["run_id"] == run["run_id"]

    third = screen()
    third.until("● READY vllm :")
    third.press("q")
    third.until("[leave running]")
    third.press("right", "enter")  # this time it is stopped on leaving
    assert third.ended() == 0
    assert host.ok("servers")["servers"][0]["state"] == "stopped" and host.left() == []


@pytest.mark.slow
def test_a_hangup_ends_the_screen_and_not_the_server(host: CommandLine, screen: Open) -> None:
    s = screen(NARROW)
    start_server(s)
    os.kill(s.child.pid, signal.SIGHUP)
    assert s.ended() == 128 + signal.SIGHUP
    host.ok("stop", str(single_run(host)["run_id"]))
    assert host.left() == []


@pytest.mark.long
@pytest.mark.slow
def test_the_terminal_may_be_resized_during_a_benchmark(host: CommandLine, screen: Open) -> None:
    s = screen(WIDE)
    start_server(s)
    s.press("b")
    s.until("streams at once")
    s.press("enter")
    s.until(lambda t: re.search(r"~ benchmark  measuring \d+/48", t) is not None)
    s.resize(*NARROW)
    s.until(
        "3 Log", "6 GPUs", lambda t: "╭" not in t and len(t.split("\n")) == 24, simulated, seconds=5
    )
    s.resize(200, 60)
    s.until("1 Presets", "5 Compare", lambda t: t.count("╭") == 5, simulated)
    s.resize(40, 12)
    s.until(lambda t: len(t.split("\n")) == 12, simulated)
    s.resize(*WIDE)
    s.until(
        lambda t: t.count("╭") == 5,
        simulated,
        lambda t: re.search(r"1 qwen3-vl-2b-tp4-\S+ +[\d,]+ ", t) is not None,
    )
    s.press("q")
    s.until("[leave running]")
    s.press("right", "enter")
    assert s.ended() == 0 and host.left() == []


@pytest.mark.slow
@pytest.mark.ci_cases(1)
@pytest.mark.parametrize(
    ("env", "colours"),
    [({"NO_COLOR": "1"}, None), ({"TERM": "xterm-16color"}, "16")],
    ids=["NO_COLOR", "16 colours"],
)
def test_it_reads_the_same_with_fewer_colours(
    screen: Open, env: dict[str, str], colours: str | None
) -> None:
    s = screen(WIDE, **env)
    s.until("SIMULATED", "qwen3-vl-2b-tp4-eager", "4 x A100")
    s.press("p", "t", "p", "4", "enter")
    s.until("enforce-eager", "ok 0 errors")
    s.press("f1")
    s.until("pick a preset: type letters of its name")
    s.press("escape")
    s.until(lambda t: "pick a preset: type letters of its name" not in t)
    painted = COLOUR.findall(s.raw)
    if colours is None:
        # the cursor is told in reverse
        assert painted == [] and re.search(r"\x1b\[(?:\d+;)*7m", s.raw)
    else:
        assert painted and not any("38;" in code or "48;" in code for code in painted), painted[:3]
    s.press("q")
    assert s.ended() == 0
