"""Checks whether the packages of an engine (torch, CUDA, FlashInfer, NCCL) fit each other, the
driver and the GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from workbench.doctor.engine_packages import TITLES, EnginePackages
from workbench.doctor.examination import Examination
from workbench.doctor.table import (
    Architecture,
    architecture_of_capability,
    known_architectures,
    load_doctor_table,
    load_package_rules,
    versions_pinned_by_package,
)
from workbench.engines.catalog import parse_version_numbers
from workbench.model.findings import Finding, Level

FLASHINFER = "flashinfer-python"
_NEW_VENV = "install {} alone in a new venv, so that it brings the packages it was built with"


def check_versions_are_known(seen: Examination) -> Iterator[Finding]:
    """Report engines whose Python does not answer, and GPUs that are too new to be in the table of
    versions (table.json)."""
    for stack in seen.packages:
        if stack.problem:
            text = f"the packages of {stack.engine} are unknown: {stack.problem}"
            fix = "check the Python in the first line of the engine's program"
            if stack.python:
                fix = f"run this Python by hand: {stack.python} -V"
            yield Finding(Level.WARN, "stack.unread", text, fix=fix, evidence=stack.python)
    newest = parse_version_numbers(load_doctor_table()["architectures"][-1]["capability"])
    for capability in seen.compute_capabilities:
        if parse_version_numbers(capability) > newest:
            text = (
                "no version was checked for these GPUs, because their compute capability "
                f"{capability} is unknown"
            )
            yield Finding(
                Level.INFO,
                "stack.new-gpu",
                text,
                fix="update Workbench: a newer version may know these GPUs",
                evidence=capability,
            )


def check_torch_cpu_build(seen: Examination) -> Iterator[Finding]:
    for stack in seen.packages:
        if seen.gpus and stack.cuda == "none":
            text = (
                f"the torch of {stack.engine} is built without CUDA: {stack.engine} cannot "
                "use the GPUs"
            )
            yield _package_finding(
                stack, Level.ERROR, "stack.cpu-build", text, _NEW_VENV.format(stack.engine), "torch"
            )


def check_driver_cuda(seen: Examination) -> Iterator[Finding]:
    """Report a torch that was built for a newer CUDA than the driver supports."""
    table = load_doctor_table()["drivers_of_cuda"]
    have = parse_version_numbers(seen.driver.cuda_version)
    for stack in seen.packages:
        built = parse_version_numbers(stack.cuda)
        if not have or not built:
            continue
        about = f"the torch of {stack.engine} is built for CUDA {stack.cuda}"
        that = f"driver {seen.driver.driver_version} has CUDA {seen.driver.cuda_version}"
        if built[0] > have[0]:
            needed = table["drivers"].get(str(built[0]))
            fix = f"install driver {needed} or newer" if needed else "install a newer driver"
            fix += f", or {stack.engine} built for CUDA {have[0]}"
            yield _package_finding(
                stack,
                Level.ERROR,
                "stack.driver",
                f"{about}; {that}",
                fix,
                "torch",
                table["source"],
            )
        elif built[:2] > have[:2]:
            text = (
                f"{about}; {that}: programs run, but kernels that are compiled at run time "
                "may not load"
            )
            yield _package_finding(
                stack,
                Level.HINT,
                "stack.driver-minor",
                text,
                "install a newer driver",
                "torch",
                table["source"],
            )


def check_torch_cuda(seen: Examination) -> Iterator[Finding]:
    """Report a torch that was built for a CUDA version without full support for a GPU of this
    host."""
    oldest = load_doctor_table()["oldest_architecture"]
    for stack, capability in product(seen.packages, seen.compute_capabilities):
        built, row = parse_version_numbers(stack.cuda), architecture_of_capability(capability)
        about = f"the torch of {stack.engine} is built for CUDA {stack.cuda}"
        if not built:
            continue
        if row is None:
            is_dropped = parse_version_numbers(capability) < parse_version_numbers(
                oldest["capability"]
            )
            if is_dropped and built >= parse_version_numbers(oldest["cuda"]):
                text = f"{about}, which has no code for compute capability {capability} any more"
                fix = f"install {stack.engine} built for CUDA 12"
                yield _package_finding(
                    stack, Level.ERROR, "stack.cuda-dropped", text, fix, "torch", oldest["source"]
                )
        elif built < parse_version_numbers(row.cuda):
            text = (
                f"{about}, which has no code for {row.name}: the first kernel fails with `no "
                "kernel image is available`"
            )
            fix = (
                f"{_NEW_VENV.format(stack.engine)}; it needs torch for CUDA {row.cuda_full} or "
                "newer"
            )
            yield _package_finding(
                stack, Level.ERROR, "stack.cuda-arch", text, fix, "torch", row.source
            )
        elif built < parse_version_numbers(row.cuda_full):
            text = (
                f"{about}: code for its relatives runs on {row.name}, but kernels compiled at "
                "run time may fail"
            )
            fix = (
                f"use a build for CUDA {row.cuda_full}, or set TRITON_PTXAS_PATH to ptxas of "
                f"CUDA {row.nvcc} or later"
            )
            yield _package_finding(
                stack, Level.WARN, "stack.cuda-partly", text, fix, "torch", row.source
            )


def check_package_gpu_support(seen: Examination) -> Iterator[Finding]:
    """Report versions of torch, FlashInfer and the engines that do not support a GPU of this
    host."""
    for stack, row in product(seen.packages, known_architectures(seen.compute_capabilities)):
        yield from _report_old_packages(stack, row)
        rules = [
            r
            for r in load_package_rules()
            if row.capability in r.capabilities and _is_package_older(stack, r.package, r.below)
        ]
        for rule in rules[:1]:  # the oldest bound that is missed is the worst
            text = rule.text.format(version=stack.versions[rule.package], arch=row.name)
            yield _package_finding(
                stack, rule.level, "stack.engine-arch", text, rule.fix, rule.package, rule.source
            )


def _report_old_packages(stack: EnginePackages, row: Architecture) -> Iterator[Finding]:
    # otherwise `check_torch_cuda` judges the build itself
    if stack.cuda is None and _is_package_older(stack, "torch", row.torch):
        text = f"torch {stack.versions['torch']} of {stack.engine} is older than {row.name}"
        fix = (
            f"{_NEW_VENV.format(stack.engine)}; it needs torch {row.torch} or newer for CUDA "
            f"{row.cuda_full}"
        )
        yield _package_finding(
            stack, Level.ERROR, "stack.torch-arch", text, fix, "torch", row.source
        )
    if row.flashinfer and _is_package_older(stack, FLASHINFER, row.flashinfer):
        text = (
            f"FlashInfer {stack.versions[FLASHINFER]} of {stack.engine} has no kernels for "
            f"{row.name}"
        )
        fix = (
            f"install a {stack.engine} with FlashInfer {row.flashinfer} or newer, or choose "
            "another attention backend"
        )
        yield _package_finding(
            stack, Level.WARN, "stack.flashinfer-arch", text, fix, FLASHINFER, row.source
        )


def check_pinned_versions(seen: Examination) -> Iterator[Finding]:
    """Report packages whose installed version differs from the one with which the engine or torch
    was built."""
    for stack in seen.packages:
        for package, version in stack.versions.items():
            needs = stack.needs.get(package) or versions_pinned_by_package(package, version)
            for name, wanted in needs.items():
                have = stack.versions.get(name)
                if have is None or name not in TITLES:
                    continue
                if any(_is_same_version(have, pin) for pin in wanted):
                    continue
                text = (
                    f"{package} {version} was built with {TITLES[name]} {' or '.join(wanted)}, and "
                    f"{have} is installed"
                )
                fix = f"pip install '{name}=={wanted[0]}', or {_NEW_VENV.format(stack.engine)}"
                level = Level.HINT if package == "torch" else Level.WARN
                yield _package_finding(
                    stack,
                    level,
                    "stack.pins",
                    text,
                    fix,
                    name,
                    load_doctor_table()["pins"]["source"],
                )


def check_nccl(seen: Examination) -> Iterator[Finding]:
    """Report an NCCL package that was built for another major version of CUDA than torch."""
    for stack in seen.packages:
        found = [name for name in stack.versions if name.startswith("nvidia-nccl-cu")]
        built = parse_version_numbers(stack.cuda)
        if found and built and f"nvidia-nccl-cu{built[0]}" not in found:
            other = ", ".join(f"{name} {stack.versions[name]}" for name in found)
            text = f"{stack.engine} has {other}, and its torch is built for CUDA {stack.cuda}"
            yield _package_finding(
                stack,
                Level.WARN,
                "stack.nccl",
                text,
                _NEW_VENV.format(stack.engine),
                found[0],
            )


def check_cuda_toolkit(seen: Examination) -> Iterator[Finding]:
    """Report a CUDA_HOME that does not exist, and an nvcc that is missing, too old for a GPU, or of
    another CUDA version than torch. FlashInfer and other packages compile kernels with nvcc at run
    time."""
    values = seen.values
    if values.cuda_home_missing:
        text = f"CUDA_HOME names {values.cuda_home}, which does not exist"
        evidence = f"CUDA_HOME={values.cuda_home}"
        fix = "unset CUDA_HOME, or set CUDA_HOME to the directory of an installed CUDA toolkit"
        yield Finding(Level.WARN, "cuda.home", text, fix=fix, evidence=evidence)
    jit = [
        s
        for s in seen.packages
        if FLASHINFER in s.versions and "flashinfer-jit-cache" not in s.versions
    ]
    if values.nvcc is None:
        for stack in jit if seen.gpus else ():
            text = (
                f"{stack.engine} has FlashInfer without compiled kernels, and there is no "
                "nvcc to compile them"
            )
            version = stack.versions[FLASHINFER]
            fix = (
                f"install flashinfer-jit-cache {version} in its venv, or a CUDA toolkit and "
                "set CUDA_HOME"
            )
            source = "https://github.com/flashinfer-ai/flashinfer/issues/1919"
            yield _package_finding(stack, Level.WARN, "cuda.nvcc", text, fix, FLASHINFER, source)
        return
    have = parse_version_numbers(values.nvcc_version)
    evidence = f"{values.nvcc}: release {values.nvcc_version}"
    for row in known_architectures(seen.compute_capabilities):
        if _is_older(values.nvcc_version, row.nvcc):
            text = (
                f"nvcc {values.nvcc_version} cannot compile for {row.name}: kernels built at "
                "run time fail"
            )
            fix = f"install the CUDA toolkit {row.cuda_full} or newer, and set CUDA_HOME to it"
            yield Finding(
                Level.WARN, "cuda.nvcc-arch", text, fix=fix, source=row.source, evidence=evidence
            )
    for stack in jit:
        built = parse_version_numbers(stack.cuda)
        if have and built and have[0] != built[0]:
            text = (
                f"nvcc is of CUDA {values.nvcc_version}, and the torch of {stack.engine} of "
                f"CUDA {stack.cuda}"
            )
            fix = f"set CUDA_HOME to a toolkit of CUDA {built[0]}"
            yield Finding(Level.HINT, "cuda.nvcc-torch", text, fix=fix, evidence=evidence)


def _is_package_older(stack: EnginePackages, package: str, bound: str) -> bool:
    return _is_older(stack.versions.get(package), bound)


def _is_older(version: str | None, bound: str) -> bool:
    """Return whether `version` is known and older than `bound`."""
    have = parse_version_numbers(version)
    return bool(have) and have < parse_version_numbers(bound)


def _is_same_version(have: str, wanted: str) -> bool:
    """Return whether the installed version `have` equals `wanted`. A part after "+", such as
    "+cu128", is compared only if `wanted` has one."""
    return have == wanted or ("+" not in wanted and have.partition("+")[0] == wanted)


def _package_finding(
    stack: EnginePackages,
    level: Level,
    code: str,
    text: str,
    fix: str,
    package: str,
    source: str | None = None,
) -> Finding:
    evidence = (
        f"{stack.engine}: {package} {stack.versions.get(package, 'unknown')}, CUDA "
        f"{stack.cuda or 'unknown'}"
    )
    return Finding(level, code, text, fix=fix, source=source, evidence=evidence)


CHECKS = (
    check_versions_are_known,
    check_driver_cuda,
    check_torch_cuda,
    check_torch_cpu_build,
    check_package_gpu_support,
    check_pinned_versions,
    check_nccl,
    check_cuda_toolkit,
)
