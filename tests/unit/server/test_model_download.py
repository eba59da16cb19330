"""Downloads by a program of the host: what huggingface_hub 2.4.0 printed, and what a user reads."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from workbench.hosts.local import LocalHost
from workbench.model.errors import HostError, InputError
from workbench.server.model_download import download_model

HINT = "\x1b[90mHint: set HF_DEBUG=1 as environment variable for full traceback.\x1b[0m"


def run(program: Path, *printed: str, code: int = 1, model: str = "org/none") -> str:
    program.write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(printed) + f"\nEND\nexit {code}\n")
    program.chmod(0o755)
    return asyncio.run(download_model(LocalHost(), str(program), model, env={}))


@pytest.mark.parametrize(
    ("printed", "why", "step"),
    [
        (
            "Error: Model 'org/none' not found.",
            "the hub has no such model or revision",
            "check the id",
        ),
        (
            "Error: Revision not found in model 'org/none'.",
            "the hub has no such model or revision",
            "check the id",
        ),
        (
            "Error: Access denied. Model 'org/none' requires approval.",
            "the hub refuses access",
            "HF_TOKEN",
        ),
        (
            "Error: Local entry not found. [Errno -2] Name or service not known",
            "does not reach the hub",
            "models copy",
        ),
        (
            "Error: Local entry not found. Cannot reach x: offline mode is enabled.",
            "does not reach",
            "models copy",
        ),
        ("Error: No space left on device", "Error: No space left on device", "again"),
    ],
)
def test_the_error_of_the_program_has_a_next_step(
    tmp_path: Path, printed: str, why: str, step: str
) -> None:
    with pytest.raises(HostError) as failed:
        run(tmp_path / "hf", f"\x1b[1m\x1b[31m{printed}", "more about it\x1b[0m", HINT)
    assert (
        why in failed.value.message
        and printed in failed.value.message
        and step in str(failed.value.next_step)
    )


def test_the_last_line_is_the_place_of_the_model(tmp_path: Path) -> None:
    assert run(
        tmp_path / "hf", "Fetching 5 files: 80%", "/hub/models--org--none/snapshots/x", code=0
    ).startswith("/hub")


@pytest.mark.parametrize(
    "name", ["tiny", "--help", "-x/y", "a b/c", "org/tiny; x", "../x", "a/b/c"]
)
def test_only_the_id_of_a_model_is_passed_on(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="is not the id of a model"):
        run(tmp_path / "hf", code=0, model=name)
