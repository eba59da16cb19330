"""The command `quality`: whether the answers of B are the same as those of A."""

from __future__ import annotations

import argparse
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from workbench.cli.experiment_arms import is_flag_assignment
from workbench.cli.open_session import connect_session
from workbench.cli.output import print_json_or_lines, print_message, simulated_suffix
from workbench.cli.plan import parse_variables
from workbench.cli.questions import require_confirmation
from workbench.cli.registry import command, option, repeatable_option
from workbench.cli.shared_options import IF_MEASURED, TRUST, YES
from workbench.cli.stop_signals import cancel_on_signals
from workbench.model.errors import InputError
from workbench.model.quality import KL_MARGIN, LN_PPL_MARGIN, NOT_MEASURED
from workbench.model.untrusted_text import clean_text

if TYPE_CHECKING:
    from workbench.model.experiment import Arm
    from workbench.model.quality import QualityResult
    from workbench.session.quality.measuring import QualityOptions
    from workbench.session.quality.own_scores import OwnMeasureCommand
    from workbench.session.session import Session

_UNMEASURED = 3  # exit code: there is no verdict
_MOST_CONCURRENCY = 256
_MOST_EVAL_MINUTES = 10_080  # a week


@command(
    "quality",
    "say whether the answers of B are the same as those of A, by log probabilities of texts and by "
    "answers",
    option("a A", 'a preset, run, result or URL, and changed flags: "TARGET flag=value …"'),
    option(
        "b B",
        "the same for B; with flags only, B is A with these flags. With one argument alone, that is B, "
        "and A is what it was changed from: a run that it replaced, its preset, or a baseline",
        nargs="?",
    ),
    option("--texts FILE", 'your own texts: one JSON object {"text": "…"} per line'),
    option("--concurrency N", "answers that are written together (8)", int, default=8),
    option(
        "--kl-margin NATS",
        f"largest divergence that counts as the same ({KL_MARGIN})",
        float,
        default=KL_MARGIN,
    ),
    option(
        "--ppl-margin NATS",
        f"largest change of ln perplexity that counts as the same ({LN_PPL_MARGIN})",
        float,
        default=LN_PPL_MARGIN,
    ),
    option(
        "--eval COMMAND",
        "your own measure, run against A and then B: it writes the score of each item as JSON lines "
        "below {items}; {base_url} and {model} are replaced too",
    ),
    option("--eval-score FIELD", "field of the score in these lines (default: the first metric)"),
    option("--eval-minutes M", "time limit of this command on each side (120)", float),
    option("--no-restart", "do not measure A again after a restart"),
    option("--no-answer-scores", "do not let A score the answers of B"),
    repeatable_option(
        "--var name=value", "set a variable of the presets; repeatable", dest="variables"
    ),
    IF_MEASURED,
    TRUST,
    YES,
    usage="workbench quality A B [OPTION…]\n       workbench quality B [OPTION…]",
    examples=(
        "workbench quality vllm-any kv-cache-dtype=fp8 --var model=Qwen/Qwen3-0.6B",
        'workbench quality vllm-any "sglang-any tp-size=2" --var model=Qwen/Qwen3-0.6B',
        "workbench quality http://127.0.0.1:8000 http://127.0.0.1:8001",
        "workbench quality my-preset",
    ),
)
async def measure_quality(arguments: argparse.Namespace) -> int:
    from workbench.session.quality.comparison import comparison_plan_lines
    from workbench.session.quality.sides import resolve_arms_to_servers, resolve_result_to_server

    options = _quality_options(arguments)
    arms = _parse_arms_to_compare(arguments)
    async with connect_session(arguments) as session:
        await session.servers.supervisor.runs()
        await session.gpu.alterations.read_altered_settings()
        variables: Mapping[str, str] = parse_variables(arguments)
        if len(arms) == 1:
            found = session.quality.lineage.find_original_arm(
                await resolve_result_to_server(session, arms[0]), variables
            )
            a, b, variables = found.a, found.b, found.variables
            print_message(f"A is {found.words}")
        else:
            a, b = arms
        a, b = await resolve_arms_to_servers(session, a, b)
        comparisons = session.quality
        a, b, bases = await comparisons.targets.resolve_targets(a, b, variables)
        if arguments.trust:
            comparisons.targets.trust_preset_parts_of_plans(bases)
        for line in comparison_plan_lines(a, b, bases, options):
            print_message(line)
        for warning in session.experiments.doubtful_value_warnings(a, b, bases):
            print_message(warning)
        await _confirm_stop_of_runs(session, (a, b), arguments)
        async with cancel_on_signals():
            result = await comparisons.compare_answers(a, b, bases, options, print_message)
    print_json_or_lines(arguments.json, asdict(result), _quality_lines(result))
    unmeasured = result.verdict == NOT_MEASURED or (options.own is not None and result.own is None)
    return _UNMEASURED if unmeasured else 0


def _quality_options(arguments: argparse.Namespace) -> QualityOptions:
    from workbench.quality import texts
    from workbench.quality.verdict import Margins
    from workbench.session.quality.measuring import QualityOptions

    if not 1 <= arguments.concurrency <= _MOST_CONCURRENCY:
        raise InputError(
            f"--concurrency {arguments.concurrency} is not from 1 to {_MOST_CONCURRENCY}",
            next_step="give the concurrency of your benchmark, such as --concurrency 8",
        )
    for name in ("kl_margin", "ppl_margin"):
        if not 0 < getattr(arguments, name) < float("inf"):
            raise InputError(
                f"--{name.replace('_', '-')} needs a number above 0",
                next_step="give nats per token, such as --kl-margin 0.001",
            )
    return QualityOptions(
        texts=texts.read_own_texts(arguments.texts)
        if arguments.texts
        else texts.shipped_text_set(),
        concurrency=arguments.concurrency,
        restart=not arguments.no_restart,
        anyway=arguments.if_measured == "beside",
        judged=not arguments.no_answer_scores,
        margins=Margins(arguments.kl_margin, arguments.ppl_margin),
        own=_read_eval_command(arguments),
    )


def _read_eval_command(arguments: argparse.Namespace) -> OwnMeasureCommand | None:
    minutes = arguments.eval_minutes
    if arguments.eval is None:
        if arguments.eval_score is not None:
            raise InputError(
                "--eval-score names a field of the files that --eval writes, which is not given",
                next_step="add --eval COMMAND",
            )
        if minutes is not None:
            raise InputError(
                "--eval-minutes limits the command of --eval, which is not given",
                next_step="add --eval COMMAND",
            )
        return None
    from workbench.session.quality.own_scores import DEFAULT_COMMAND_MINUTES, OwnMeasureCommand

    if minutes is not None and not 0 < minutes <= _MOST_EVAL_MINUTES:
        raise InputError(
            f"--eval-minutes {minutes:g} is not above 0 and at most {_MOST_EVAL_MINUTES:,}",
            next_step="give the minutes that your command may take, such as --eval-minutes 240",
        )

    argv = _split_shell_words(arguments.eval, "--eval")
    if not argv:
        raise InputError("--eval is empty", next_step="give a command, such as --eval 'lm-eval …'")
    if shutil.which(argv[0]) is None:  # A would be measured for minutes before it is started
        raise InputError(
            f"--eval: {clean_text(argv[0])} is no program that this machine can run",
            next_step="name a program that is installed on this machine",
        )
    return OwnMeasureCommand(
        argv, arguments.eval_score, DEFAULT_COMMAND_MINUTES if minutes is None else minutes
    )


def _parse_arms_to_compare(arguments: argparse.Namespace) -> Sequence[Arm]:
    """Return A and B as the user named them, or B alone if only one argument is given. If B has
    only flags, it is A with these flags. Raises InputError for a side without a target."""
    from workbench.model.experiment import Arm, ArmTarget

    if arguments.b is None:
        return [_parse_arm_with_target(arguments.a, "B", "a preset, a run or a result")]
    a = _parse_arm_with_target(arguments.a, "A", "a preset, a run, a result or a URL")
    of_b = _split_shell_words(arguments.b, "B")
    if not of_b:
        raise InputError("B is empty", next_step="give a preset, run or URL, or changed flags of A")
    if is_flag_assignment(of_b[0]):
        return [a, replace(a, sets=(*a.sets, *of_b))]
    return [a, Arm(sets=of_b[1:], target=ArmTarget(of_b[0]))]


def _parse_arm_with_target(text: str, side: str, targets: str) -> Arm:
    """Return the side "A" or "B" from its target and the flags behind it. Raises InputError if the
    text does not begin with a target; `targets` says for the message what can be one."""
    from workbench.model.experiment import Arm, ArmTarget

    words = _split_shell_words(text, side)
    if not words or is_flag_assignment(words[0]):
        raise InputError(
            f"{side} does not begin with {targets}",
            next_step="for example `workbench quality vllm-any kv-cache-dtype=fp8`",
        )
    return Arm(sets=words[1:], target=ArmTarget(words[0]))


def _split_shell_words(text: str, error_prefix: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise InputError(
            f"{error_prefix}: {error}", next_step="quote the values of flags as in a shell"
        ) from None


async def _confirm_stop_of_runs(
    session: Session, arms: tuple[Arm, Arm], arguments: argparse.Namespace
) -> None:
    """Ask the user before the comparison stops running servers. Ask nothing if it stops none."""
    from workbench.session.quality.sides import run_ids_to_stop

    stopped = run_ids_to_stop(session, *arms)
    if not stopped:
        return
    text = f"the comparison stops run {', '.join(stopped)}"
    question = f"T{text[1:]} on {session.host.name}. Continue?"
    problem = f"{text}, and nobody can be asked to confirm"
    await require_confirmation(
        arguments, question, problem=problem, next_step="add --yes to confirm"
    )


def _quality_lines(result: QualityResult) -> Iterator[str]:
    from workbench.report.formats.terminal import block_lines
    from workbench.report.quality_blocks import quality_blocks

    simulated = simulated_suffix(result.simulated)
    yield f"A: {result.a}\nB: {result.b}{simulated}"
    yield from block_lines(quality_blocks(result))
