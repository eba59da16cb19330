"""The settings of a host in hosts.toml, added to a plan for that host, and findings about these
settings. A setting of the plan itself has precedence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from workbench.engines.plans import set_executable
from workbench.model.findings import Finding, Level
from workbench.model.flags import FlagSetting, Origin
from workbench.model.host_entry import HostEntry
from workbench.model.plan import LaunchPlan
from workbench.model.run_options import PROCESS, launcher_option
from workbench.model.secrets import MASK, is_secret_name

FILE = "hosts.toml"
FILES = ("config.toml", FILE)  # that name programs for a host


def add_host_settings(
    plan: LaunchPlan, entry: HostEntry | None, program_and_file: tuple[str, str] | None
) -> LaunchPlan:
    """Return the plan with the settings of a host. `entry` has the host's environment and launcher;
    None if hosts.toml has no entry for the host. `program_and_file` is (program that starts the
    engine, file that names the program); None if no file names a program."""
    if program_and_file is not None and not plan.executable:
        plan = set_executable(plan, *program_and_file)
    if entry is None:
        return plan
    added = [
        FlagSetting(name, value, Origin.HOST)
        for name, value in entry.env.items()
        if name not in plan.env_texts
    ]
    plan = replace(plan, env=(*plan.env, *added))
    if entry.run_as is None or plan.run_as not in (PROCESS, entry.run_as):
        return plan
    return replace(
        plan, run_as=entry.run_as, run_options={**_parse_run_options(entry), **plan.run_options}
    )


def _parse_run_options(entry: HostEntry) -> dict[str, str]:
    """Return the options of the entry's launcher as `LaunchPlan.run_options` stores them: {name:
    values, one per line}. The values are valid, because hosts.toml was checked when it was read."""
    word = entry.run_as or PROCESS
    options = {}
    for name, text in entry.run_options.items():
        parse = launcher_option(word, name).parse
        options[name] = "\n".join(map(parse, text.splitlines()))
    return options


def remove_host_settings(plan: LaunchPlan, entry: HostEntry | None) -> LaunchPlan:
    """Return the plan without the settings that `add_host_settings` added for a host. `entry` is
    that host's entry in hosts.toml; None if hosts.toml has no entry for it."""
    plan = replace(
        plan, env=tuple(setting for setting in plan.env if setting.origin is not Origin.HOST)
    )
    if plan.executable_from in FILES:
        plan = set_executable(plan, "")
    if entry is not None and plan.run_as == entry.run_as:
        added = _parse_run_options(entry)
        rest = {name: text for name, text in plan.run_options.items() if added.get(name) != text}
        plan = replace(plan, run_as=PROCESS, run_options=rest)
    return plan


def report_host_settings(plan: LaunchPlan, entry: HostEntry | None) -> Iterator[Finding]:
    """Yield findings about the settings of hosts.toml that the plan uses, and about those that it
    does not use."""
    if entry is None:
        return
    if names := [setting.name for setting in plan.env if setting.origin is Origin.HOST]:
        yield Finding(
            Level.INFO,
            "host.env",
            f"{FILE} sets the environment variables {', '.join(names)} for servers on {entry.name}",
        )
    for setting in plan.env:
        other = entry.env.get(setting.name, str(setting.value))
        if setting.origin is not Origin.HOST and str(setting.value) != other:
            value = MASK if is_secret_name(setting.name) else other
            text = f"the plan's own value of {setting.name} is used, not {value} of {FILE}"
            yield Finding(
                Level.INFO,
                "host.env-unused",
                text,
                setting.name,
                f"use --unset {setting.name} to get the value of {FILE}",
            )
    if entry.run_as != PROCESS and plan.run_as == entry.run_as:
        options = "".join(f" {name}={text}" for name, text in plan.run_options.items())
        text = (
            f"servers on {entry.name} are started as {entry.run_as}{options}, because {FILE} "
            "says so"
        )
        yield Finding(
            Level.INFO, "host.run-as", text, fix="choose another launcher of servers with --as"
        )
