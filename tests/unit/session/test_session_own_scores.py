"""The command of the user's own measure, as a real process without a server."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from support.procs import alive, eventually

from workbench.model.bench import BenchSpec
from workbench.model.errors import BenchError, InputError, WorkbenchError
from workbench.quality.own_measure import ItemScores
from workbench.session.bench.benchmark_load import BenchmarkLoad, ServerUnderTest
from workbench.session.quality.own_scores import OwnMeasureCommand, run_score_command

WRITE = (
    "import os, sys; open(sys.argv[1] + '/x.jsonl', 'w').write("
    '\'{"item": "%s %s", "score": 1}\' % (sys.argv[2], os.environ["OPENAI_API_KEY"]))'
)


# starts a child in a session of its own that holds the output, and waits for it without end
HANGS = (
    "import os, subprocess, sys; "
    "child = subprocess.Popen(['sleep', '600'], start_new_session=True); "
    "open(sys.argv[1], 'w').write(str(child.pid)); child.wait()"
)


def run(*argv: str, key: str | None = None, minutes: float = 120.0) -> tuple[ItemScores, list[str]]:
    said: list[str] = []
    spec = BenchSpec("http://127.0.0.1:24100", "org/tiny", api_key_env="MY_KEY" if key else None)
    env = {"MY_KEY": key} if key else {}
    load = BenchmarkLoad(spec, ServerUnderTest("box"), env, asyncio.Event())
    scores = asyncio.run(
        run_score_command(
            OwnMeasureCommand(argv, minutes=minutes), load, said.append, "A, your measure"
        )
    )
    return scores, said


def test_the_words_and_the_environment_name_the_server_and_the_directory() -> None:
    found, said = run(sys.executable, "-c", WRITE, "{items}", "{base_url} {model}", key="k")
    assert found.by_item == {"http://127.0.0.1:24100/v1 org/tiny k": 1.0}
    assert said[0].startswith("A, your measure: ") and "{items}" in said[0]
    assert said[1].startswith("A, your measure: 1 item scored in ")


@pytest.mark.parametrize(
    ("argv", "kind", "text"),
    [
        (("/nowhere/lm-eval",), BenchError, "the command of your measure /nowhere/lm-eval did not"),
        (
            (sys.executable, "-c", "raise SystemExit('no such task')"),
            BenchError,
            "the command of your measure ended with exit code 1: no such task",
        ),
        ((sys.executable, "-c", "pass"), InputError, "the command wrote no scores"),
        (
            (
                sys.executable,
                "-c",
                "import sys; open(sys.argv[1] + '/x.jsonl', 'w').write('{')",
                "{items}",
            ),
            InputError,
            "x.jsonl, line 1: not JSON",
        ),
    ],
)
def test_a_command_that_fails_says_why(
    argv: tuple[str, ...],
    kind: type[WorkbenchError],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(kind) as raised:
        run(*argv)
    assert text in raised.value.message
    assert not list(tmp_path.iterdir()), "its files are deleted"


def test_a_command_that_takes_too_long_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    with pytest.raises(BenchError) as raised:
        run(sys.executable, "-c", HANGS, str(told), minutes=1.2 / 60)
    assert raised.value.message == "the command of your measure did not end within 1.2 s"
    child = int(told.read_text())
    eventually(lambda: not alive(child), "the child to end")
