"""The command `doctor`, which shows the properties of a host and the problems that keep Workbench
from serving and tuning on it.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from workbench.cli.host_words import add_host_options_to_fixes
from workbench.cli.open_session import connect_session, warn_of_unreached_nodes
from workbench.cli.output import print_json_or_lines, print_message
from workbench.cli.registry import command, make_exclusive_options, option
from workbench.cli.shared_options import IF_MEASURED
from workbench.cli.stop_signals import cancel_on_signals
from workbench.model.errors import InputError
from workbench.model.findings import Level, most_severe_level


@command(
    "doctor",
    "show what is on the host, what is missing or does not fit, and what to do about it",
    make_exclusive_options(
        option(
            "--list",
            "list the published traps of serving, and what of Workbench sees each; no host is read",
        ),
        option(
            "--multi-gpu",
            "copy data between each pair of GPUs with the engine's own torch and NCCL, and compare "
            "bytes and bandwidth; every case ends within 20 s",
        ),
    ),
    option(
        "--engine NAME", "the engine whose torch --multi-gpu uses; default: the first one found"
    ),
    IF_MEASURED,
    examples=(
        "workbench --host gpu-box doctor",
        "workbench doctor --json",
        "workbench doctor --list",
        "workbench --host gpu-box doctor --multi-gpu",
    ),
)
async def check_host(arguments: argparse.Namespace) -> int:
    if arguments.list:
        return _print_known_traps(arguments)
    if arguments.multi_gpu:
        return await _test_and_print_gpu_paths(arguments)
    if arguments.engine is not None or arguments.if_measured is not None:
        raise InputError(
            "--engine, --wait and --anyway belong to --multi-gpu",
            next_step="workbench doctor --multi-gpu",
        )
    from workbench.report.finding_blocks import doctor_blocks, gpu_path_blocks
    from workbench.report.formats.terminal import block_lines
    from workbench.session.hosts.doctor import examine_host
    from workbench.session.hosts.gpu_paths import path_matrix_lines_and_time

    async with connect_session(arguments) as session:
        warn_of_unreached_nodes(session)
        report = await examine_host(session)
    report = replace(report, findings=add_host_options_to_fixes(report.findings, arguments))
    blocks = doctor_blocks(report.findings, report.labels_and_texts)
    if report.paths is not None:
        blocks += gpu_path_blocks(*path_matrix_lines_and_time(report.paths))
    return print_json_or_lines(arguments.json, report.as_json(), block_lines(blocks))


async def _test_and_print_gpu_paths(arguments: argparse.Namespace) -> int:
    from workbench.report.finding_blocks import doctor_blocks, gpu_path_blocks
    from workbench.report.formats.terminal import block_lines
    from workbench.session.hosts.gpu_paths import (
        path_matrix_lines_and_time,
        try_copies_between_gpus,
    )

    async with connect_session(arguments) as session:
        print_message("copying between the GPUs: every case ends within 20 s, all within 5 min")
        async with cancel_on_signals("the copies were ended, and no outcome is kept"):
            report = await try_copies_between_gpus(session, arguments.engine)
    report = replace(report, findings=add_host_options_to_fixes(report.findings, arguments))
    paths = report.paths
    right = "Every byte arrived, at a bandwidth near the nominal one."
    blocks = doctor_blocks(
        report.findings, (), right if paths.was_copy_tried else "Nothing was copied."
    )
    blocks += gpu_path_blocks(*path_matrix_lines_and_time(paths))
    print_json_or_lines(arguments.json, report.as_json(), block_lines(blocks))
    return 1 if most_severe_level(report.findings) is Level.ERROR else 0


def _print_known_traps(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from workbench.doctor.known_traps import known_traps, known_traps_summary
    from workbench.report.finding_blocks import trap_table_blocks
    from workbench.report.formats.terminal import block_lines

    traps = known_traps()
    document = {
        "traps": list(map(asdict, traps)),
        "seen": sum(bool(trap.seen_by) for trap in traps),
    }
    rows = [(t.id, t.title, t.detection_text, t.versions or "", t.status) for t in traps]
    return print_json_or_lines(
        arguments.json, document, block_lines(trap_table_blocks(known_traps_summary(), rows))
    )
