"""The searches for users of Workbench, AIPerf and GuideLLM against one process of the simulated server.

    python tests/benchmarks/bench_searches_served.py --aiperf PATH/bin/aiperf
        --guidellm PATH/bin/guidellm --tokenizer DIRECTORY [--repeat 3] [--requests 300] [--minutes 20]

The server has SLOTS slots. With one user more, each request waits for a slot, so its end-to-end time
rises by a sixth. The limit lies between the times of both, as six runs measure them, so the truth
is SLOTS users. Each search may try 1 to MOST users. A search is the whole command of its tool, with its
own load client: nothing of a tool is copied, and nothing is installed here. Both others leave the
requests of a run to the user, and state the highest number that passed. The searches of the tools
take turns, and each is printed when it has ended. A busy machine is no server with a
truth: the script ends if both times are too near.

AIPerf starts its processes anew for each run, so most of a search is no load. Its documented options
keep that short here: the prompts come from a file, the server counts the tokens, and one process
each sends and reads. Each run of its search is printed with its time. A search that has not ended
after `--minutes` is ended, and its row has what it knew then.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.serving import free_port  # noqa: E402

MODEL = "Qwen/Qwen3-0.6B"
SLOTS, MOST = 6, 32
INPUT_TOKENS, OUTPUT_TOKENS = 32, 128
APART = 1.06  # least ratio of the times of SLOTS + 1 and SLOTS users
PRO = ("--simulate", "rtx-pro-6000")


SHARE = 0.95  # of the requests that must keep the limit
PROMPTS = 300  # of AIPerf, which takes them in turn
LOOK_S = 1.0  # between two looks at what AIPerf has written

Search = Callable[["Served"], "Answer"]


@dataclass(frozen=True, slots=True)
class Served:
    """The server, the limit of p95 of the end-to-end time, and what the tools need."""

    url: str
    limit_ms: float
    home: Path
    tokenizer: str
    requests: int
    most_s: float  # of a search


@dataclass(frozen=True, slots=True)
class Answer:
    holds: int | None
    fails: int | None
    ended: bool = True  # False: the time was over


def ran(argv: list[str], home: Path) -> subprocess.CompletedProcess[str]:
    homes = {f"XDG_{kind}_HOME": str(home) for kind in ("STATE", "DATA", "CONFIG")}
    env = {**os.environ, **homes, "PYTHONPATH": str(ROOT)}
    return subprocess.run(argv, env=env, cwd=home, capture_output=True, text=True, check=False)


def workbench(home: Path, *words: str) -> dict[str, Any]:
    done = ran([sys.executable, "-m", "workbench", *words, "--json"], home)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout))


def load_words() -> tuple[str, ...]:
    return "--input-tokens", str(INPUT_TOKENS), "--max-tokens", str(OUTPUT_TOKENS)


def p95_ms(home: Path, url: str, users: int) -> float:
    """Return p95 of the end-to-end time with this number of users, in a run of 300 requests."""
    words = ("--concurrency", str(users), "--requests", "300", *load_words())
    found = workbench(home, "bench", "--url", url, "--model", MODEL, *words)
    return float(found["e2e_ms"]["p95"])


def known_times_ms(home: Path, url: str) -> tuple[float, float]:
    """Return p95 of the end-to-end time with SLOTS users and with one more: the lowest of three runs
    each, in turns, because other work on the machine only makes them longer."""
    runs = [(p95_ms(home, url, SLOTS), p95_ms(home, url, SLOTS + 1)) for _ in range(3)]
    return min(within for within, _ in runs), min(beyond for _, beyond in runs)


def of_workbench(served: Served) -> Answer:
    slo = f"e2e<={served.limit_ms:.1f}@p95"
    words = ("--url", served.url, "--slo", slo, "--from", "2", "--most", str(MOST), *load_words())
    found = workbench(served.home, "capacity", *words)
    levels = {int(one["label"].split()[0]): one["slo_verdict"] for one in found["points"]}
    fails = min((users for users, said in levels.items() if said == "fails"), default=None)
    below = MOST + 1 if fails is None else fails
    kept = [users for users, said in levels.items() if said == "holds" and users < below]
    return Answer(max(kept, default=None), fails)


def of_aiperf(program: str, planner: str) -> Search:
    def search(served: Served) -> Answer:
        with tempfile.TemporaryDirectory() as folder:
            prompts = Path(folder, "prompts.jsonl")
            prompts.write_text("".join(map(prompt_line, range(PROMPTS))))
            argv = [
                *(program, "profile", "--model", MODEL, "--url", served.url),
                *("--endpoint-type", "chat", "--streaming", "--tokenizer", served.tokenizer),
                *("--input-file", str(prompts), "--custom-dataset-type", "single_turn"),
                *("--extra-inputs", "ignore_eos:true"),
                *("--extra-inputs", f"max_tokens:{OUTPUT_TOKENS}"),
                *("--use-server-token-count", "--workers-max", "1", "--record-processors", "1"),
                *("--request-count", str(served.requests)),
                *("--search-space", f"phases.profiling.concurrency:1,{MOST}:int"),
                *("--search-planner", planner, "--search-metric", "output_token_throughput"),
                *("--search-direction", "maximize", "--search-max-iterations", "20"),
                *("--search-sla", f"request_latency:p95:le:{served.limit_ms:.1f}"),
                *("--ui", "none", "--no-server-metrics", "--no-gpu-telemetry"),
                *("--output-artifact-dir", folder),
            ]
            history = Path(folder, "search_history.json")
            ended = run_aiperf(argv, served, history)
            found = read_history(history).get("boundary_summary") or {}

        def end(name: str) -> int | None:
            return int(found[name]["value"]) if found.get(name) else None

        return Answer(end("feasible_max"), end("infeasible_min"), ended)

    return search


def prompt_line(number: int) -> str:
    """Return a request of AIPerf's file: about INPUT_TOKENS words, which begin with its number."""
    words = [str(number), *("word" for _ in range(INPUT_TOKENS - 1))]
    return json.dumps({"text": " ".join(words)}) + "\n"


def run_aiperf(argv: list[str], served: Served, history: Path) -> bool:
    """Run a search of AIPerf, and print each of its runs with its time. Return whether the search
    ended in time; otherwise it is killed."""
    began_s = last_s = time.monotonic()
    told = 0
    with Path(history.parent, "said").open("w+") as said:
        process = subprocess.Popen(
            argv, cwd=served.home, stdout=said, stderr=said, start_new_session=True
        )
        try:
            while process.poll() is None and time.monotonic() - began_s < served.most_s:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK_S)
                runs = read_history(history).get("iterations", [])
                for run in runs[told:]:
                    now_s = time.monotonic()
                    (users,) = run["variation_values"].values()
                    kept = "kept" if run.get("feasible") else "not kept"
                    print(f"  {users} users: {kept}, {now_s - last_s:.0f} s", file=sys.stderr)
                    last_s, told = now_s, told + 1
        finally:
            ended = process.poll() is not None
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if not read_history(history):
            said.seek(0)
            raise SystemExit(f"AIPerf ended with {process.returncode}:\n{said.read()[-2000:]}")
    return ended


def read_history(path: Path) -> dict[str, Any]:
    """Return what a search of AIPerf has written so far. It writes the file again after each run, and
    a look at that moment finds a part of it."""
    try:
        return dict(json.loads(path.read_text()))
    except (FileNotFoundError, ValueError):
        return {}


def of_guidellm(program: str) -> Search:
    def search(served: Served) -> Answer:
        with tempfile.TemporaryDirectory() as folder:
            scenario, report = Path(folder, "scenario.json"), Path(folder, "report.json")
            scenario.write_text(json.dumps({"spec": guidellm_spec(served, report)}))
            argv = [program, "run", "--config", str(scenario), "--disable-console"]
            done = ran(argv, served.home)
            if not report.exists():
                raise SystemExit(f"GuideLLM ended with {done.returncode}:\n{done.stderr[-2000:]}")
            probes = json.loads(report.read_text())["benchmarks"]
        kept = {
            one["config"]["strategy"]["streams"]: one["metrics"]["slo_attainment"] for one in probes
        }
        passed = [users for users, share in kept.items() if share >= SHARE]
        failed = [users for users, share in kept.items() if share < SHARE]
        return Answer(max(passed, default=None), min(failed, default=None))

    return search


def guidellm_spec(served: Served, report: Path) -> dict[str, Any]:
    """Return GuideLLM's description of a search, with a bracket as wide as that of Workbench."""
    tokens = {"prompt_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS}
    search = {"initial_streams": 2, "max_streams": MOST, "tolerance": 0.05}
    return {
        "backend": {"kind": "openai_http", "target": served.url, "model": MODEL},
        "profile": {"kind": "goodput", "target_attainment": SHARE, **search},
        "constraints": [{"kind": "max_requests", "count": served.requests}],
        "tokenizer": {"kind": "huggingface_auto", "model": served.tokenizer},
        "data": [{"kind": "synthetic_text", **tokens}],
        "outputs": [{"kind": "json", "path": str(report)}],
        "metrics": {
            "kind": "generative",
            "sample_size": 0,
            "slo": {"e2el_ms": served.limit_ms},
        },
    }


def timed(name: str, search: Search, served: Served) -> tuple[Answer, float]:
    """Run a search, and print its answer. Return the answer, and how many seconds it took."""
    began_s = time.monotonic()
    answer = search(served)
    took_s = time.monotonic() - began_s
    load = os.getloadavg()[0]
    print(f"{name}: {answer} after {took_s:.0f} s, load {load:.1f}", file=sys.stderr, flush=True)
    return answer, took_s


def row(name: str, found: list[tuple[Answer, float]]) -> str:
    shown = ", ".join(
        f"{one.holds or 'none'} / {one.fails or 'none'}{'' if one.ended else ' (not ended)'}"
        for one, _ in found
    )
    errors = ", ".join(f"{(one.holds or 0) - SLOTS:+d}" for one, _ in found)
    mean_s = sum(took_s for _, took_s in found) / len(found)
    return f"| {name} | {shown} | {errors} | {mean_s / 60:.1f} min |"


def searches_of(given: argparse.Namespace) -> dict[str, Search]:
    searches: dict[str, Search] = {"Workbench": of_workbench}
    if given.aiperf:
        for planner in given.planners.split(","):
            searches[f"AIPerf, {planner}"] = of_aiperf(given.aiperf, planner)
    if given.guidellm:
        searches["GuideLLM, goodput"] = of_guidellm(given.guidellm)
    return searches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--aiperf")
    parser.add_argument("--planners", default="smooth-isotonic,monotonic-sla", help="of AIPerf")
    parser.add_argument("--guidellm")
    parser.add_argument("--tokenizer", default="")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=20.0, help="of one search of AIPerf")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the server is stopped then too
    with tempfile.TemporaryDirectory() as folder:
        home, port = Path(folder), free_port()
        slots = ("--set", f"max-num-seqs={SLOTS}")
        started = workbench(
            home, *PRO, "start", "vllm-any", "--set", f"port={port}", *slots, "--wait"
        )
        try:
            url = f"http://127.0.0.1:{port}"
            within, beyond = known_times_ms(home, url)
            print(
                f"p95: {within:.1f} ms with {SLOTS} users, {beyond:.1f} ms with one more; load "
                f"{os.getloadavg()[0]:.1f}"
            )
            if beyond < APART * within:
                raise SystemExit("the machine is too busy: the server has no truth")
            served = Served(
                url,
                sqrt(within * beyond),
                home,
                given.tokenizer,
                given.requests,
                60 * given.minutes,
            )
            searches = searches_of(given)
            found: dict[str, list[tuple[Answer, float]]] = {name: [] for name in searches}
            for _ in range(given.repeat):
                for name, search in searches.items():
                    found[name].append(timed(name, search, served))
            print(f"| search | holds / fails (truth: {SLOTS}) | error | time |\n|---|---|---|---|")
            for name, answers in found.items():
                print(row(name, answers), flush=True)
        finally:
            workbench(home, *PRO, "stop", str(started["run_id"]))


if __name__ == "__main__":
    main()
