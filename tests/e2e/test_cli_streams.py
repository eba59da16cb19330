"""Standard streams that are closed, full or in another encoding, and shell completion."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ME = [sys.executable, "-m", "workbench"]


def shell(line: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `line` in sh with $W as the command."""
    return subprocess.run(
        ["sh", "-c", line, "sh", *ME],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize(
    "words", ["presets list", "presets list --json", "--version", "experiment --help"]
)
@pytest.mark.parametrize(
    ("to", "reason"), [(">&-", "it is closed"), (">/dev/full", "No space left on device")]
)
def test_output_that_cannot_be_written_is_an_error_and_no_traceback(
    words: str, to: str, reason: str
) -> None:
    ran = shell(f'"$@" {words} {to}')
    assert ran.returncode == 1
    assert f"cannot write to standard output: {reason}" in ran.stderr
    assert "Traceback" not in ran.stderr and "Exception ignored" not in ran.stderr


def test_all_streams_closed() -> None:
    assert shell('"$@" presets list <&- >&- 2>&-').returncode == 1


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("words", ["experiment --help", "flags vllm", "presets show vllm-any"])
def test_output_in_any_encoding_is_complete(words: str, encoding: str) -> None:
    ran = shell(f'"$@" {words}', PYTHONIOENCODING=encoding)
    assert (ran.returncode, ran.stderr.count("Traceback")) == (0, 0)
    if encoding == "ascii":
        assert ran.stdout.isascii() and ran.stdout


@pytest.mark.parametrize("words", ["presets show", "flags", "start", "plan", "logs"])
def test_an_argument_that_is_not_utf_8(words: str) -> None:
    ran = subprocess.run(
        [*ME, "--json", *words.split(), b"\xff\xfe"],
        capture_output=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    assert ran.returncode in (1, 2) and "error" in json.loads(ran.stdout)
    assert b"Traceback" not in ran.stderr and b"a defect" not in ran.stderr, ran.stderr


@pytest.mark.slow
def test_every_command_reports_a_broken_configuration(tmp_path: Path) -> None:
    file = Path(os.environ["XDG_CONFIG_HOME"], "workbench", "config.toml")
    file.parent.mkdir(parents=True)
    file.write_text("misspelt = 1\n[gpu]\nheartbeat_s = nan\n")
    for words in ("presets path", "config print", "servers", "results list"):
        ran = shell(f'"$@" {words}')
        assert "config.toml:1: misspelt: Workbench has no such setting" in ran.stderr, words
        assert "config.toml:3: gpu.heartbeat_s" in ran.stderr, words
    assert shell('"$@" config print').returncode == 2
    assert shell('"$@" config path').stdout.strip() == str(file)


def completions(line: str) -> list[str]:
    """Return what bash offers for `line`, through argcomplete's protocol (descriptor 8)."""
    variables = {
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
        "_ARGCOMPLETE": "1",
    }
    ran = shell(
        '"$@" 8>&1 9>&2 1>/dev/null', _ARGCOMPLETE_IFS="\n", _ARGCOMPLETE_SHELL="bash", **variables
    )
    return [word.strip() for word in ran.stdout.splitlines()]


def test_completion_offers_commands_presets_and_profiles() -> None:
    assert {"bench", "gpu", "experiment", "config"} <= set(completions("workbench "))
    assert "vllm-any" in completions("workbench plan vllm-")
    assert completions("workbench --simulate gb10 start llamacpp-gg") == ["llamacpp-gguf"]
    assert "--power-limit" in completions("workbench gpu set --power")
    assert not any(" " in word for word in completions("workbench exp"))


def test_completion_offers_the_second_words_of_series() -> None:
    """Only `experiment` offered them."""
    for word in ("capacity", "sweep", "tune", "bisect", "experiment"):
        assert {"resume", "show"} <= set(completions(f"workbench {word} ")), word
    assert completions("workbench capacity li") == ["list"]


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_the_completion_code_is_valid_for_its_shell(name: str, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.write_text(shell(f'"$@" completion {name}').stdout)
    assert "workbench" in code.read_text()
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    ran = subprocess.run([name, "-n", str(code)], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
