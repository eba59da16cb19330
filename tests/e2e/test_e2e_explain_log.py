"""`explain-log` on files, also hostile ones."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from workbench.cli import main

LOGS = Path(__file__).parents[1] / "fixtures" / "logs"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["explain-log", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_log_file_is_explained(
    clean_environment: None, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, str(LOGS / "vllm-warnings.txt"))
    assert (
        code == 0 and "enforce-eager: no CUDA graphs" in out and ("fix: unset enforce-eager") in out
    )
    assert "0 warnings or errors not known" in err and "no explanation for" not in out


def test_json_has_findings_with_line_and_count(
    clean_environment: None, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, str(LOGS / "llamacpp-missing.txt"), "--json")
    document = json.loads(out)
    first = document["findings"][0]
    assert code == 0 and (first["code"], first["level"], first["count"] >= 1) == (
        "log.gguf-load",
        "error",
        True,
    )
    assert first["line"] and first["fix"] and "failed to open GGUF file" in document["first_error"]


def test_an_error_before_the_first_known_one_is_not_denied(
    clean_environment: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first error with a known cause was called the first error, above an earlier one."""
    known = "ERROR 11-29 10:00:07 [core.py:1] torch.OutOfMemoryError: CUDA out of memory."
    unknown = "ERROR 11-29 10:00:05 [x.py:1] the plugin foo could not be registered"
    log = tmp_path / "log"
    log.write_text(f"INFO vLLM API server version 0.32.0\n{unknown}\n{known}\n")
    _, out, _ = run(capsys, str(log))
    assert "first error with a known cause: torch.OutOfMemoryError" in out
    assert "no explanation for line 2" in out
    log.write_text(f"INFO vLLM API server version 0.32.0\n{known}\n{unknown}\n")
    assert "first error: torch.OutOfMemoryError" in run(capsys, str(log))[1]


def test_hostile_files(
    clean_environment: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fifo, binary, empty = tmp_path / "fifo", tmp_path / "binary", tmp_path / "empty"
    os.mkfifo(fifo)
    binary.write_bytes(
        os.urandom(300_000) + b"\nCUDA out of memory\x1b[31m\x1b]0;title\x07\n" + b"x" * 300_000
    )
    empty.write_bytes(b"")
    for path in (fifo, tmp_path, Path("/dev/zero"), tmp_path / "missing"):
        code, out, err = run(capsys, str(path))
        assert code == 2 and not out and str(path) in err and "Traceback" not in err
    code, out, err = run(capsys, str(binary))
    assert code == 0 and "fix:" in out and out.replace("\n", "").isprintable()
    assert run(capsys, str(empty))[0] == 0


def test_of_a_huge_file_the_ends_are_read(
    clean_environment: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("workbench.cli.explain_log._PART_BYTES", 1000)
    huge = tmp_path / "huge"
    middle = b"NCCL initialization failed\n" * 1000
    huge.write_bytes(
        b"Enforce eager set\n" + b"x\n" * 600 + middle + b"y\n" * 600 + b"CUDA out of memory\n"
    )
    code, out, _ = run(capsys, str(huge))
    assert (
        code == 0 and "enforce-eager" in out and ("CUDA out of memory") in out and "NCCL" not in out
    )
    assert "only the first and last 64 MiB were read" in out and "line 1:" in out
    code, out, _ = run(capsys, str(huge), "--json")
    document = json.loads(out)
    assert "only the first and last" in document["unread"]
    assert {finding["line"] for finding in document["findings"]} == {1, None}
