"""What a server asks of a scheduler, as words for sbatch and qsub."""

from __future__ import annotations

import pytest

from workbench.model.flags import FlagSetting
from workbench.model.job_request import JobRequest, make_job_name, pbs_words, slurm_words
from workbench.model.plan import LaunchPlan

ALL = {
    "gpus": "2",
    "cpus": "8",
    "memory": "64G",
    "walltime": "8:00:00",
    "account": "proj",
    "node": "c01",
}


def test_every_option_becomes_a_word_of_sbatch() -> None:
    words = slurm_words(
        JobRequest(
            "wb", 4, options={**ALL, "partition": "gpu", "qos": "high", "extra": "--x=a b\n-v"}
        )
    )
    assert words[:4] == ("--job-name=wb", "--nodes=1", "--ntasks-per-node=1", "--gres=gpu:2")
    assert set(words[4:-2]) == {
        "--partition=gpu",
        "--account=proj",
        "--qos=high",
        "--nodelist=c01",
        "--cpus-per-task=8",
        "--mem=64G",
        "--time=8:00:00",
    }
    assert words[-2:] == ("--x=a b", "-v")


def test_pbs_pro_and_torque_are_asked_for_the_same_resources() -> None:
    words = pbs_words(
        JobRequest(
            "a-name-that-is-too-long", 4, options={**ALL, "memory": "64gb", "queue": "short"}
        )
    )
    assert words.chunk == "select=1:host=c01:ngpus=2:ncpus=8:mem=64gb"
    assert words.nodes == "nodes=c01:ppn=8:gpus=2,mem=64gb"
    assert words.others == (
        "-N",
        "a-name-that-is-",
        "-l",
        "walltime=8:00:00",
        "-q",
        "short",
        "-A",
        "proj",
    )


@pytest.mark.parametrize("gpus", ["0", None])
def test_the_gpus_are_those_of_the_plan_unless_the_user_names_another_number(
    gpus: str | None,
) -> None:
    flags = (FlagSetting("tensor-parallel-size", 2), FlagSetting("data-parallel-size", 2))
    request = JobRequest(
        "wb", LaunchPlan("vllm", "m", flags=flags).gpu_count, options={"gpus": gpus} if gpus else {}
    )
    asked = any("gpu" in word for word in (*slurm_words(request), pbs_words(request).chunk))
    assert asked == (gpus is None)
    assert gpus or (
        "--gres=gpu:4" in slurm_words(request) and pbs_words(request).chunk == "select=1:ngpus=4"
    )


@pytest.mark.parametrize(
    ("text", "name"), [("a b/c", "a-b-c"), ("0day", "server-0day"), ("$(x)", "x"), ("…", "server-")]
)
def test_a_job_name_has_only_characters_that_schedulers_take(text: str, name: str) -> None:
    assert make_job_name(text) == name
