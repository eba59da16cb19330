"""Rules about the scope of a result: for which hardware its references are valid, which GPUs and
replicas its values include, and which missing values prevent advice."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.advisor.advice import Advice, Rule, make_advice
from workbench.advisor.facts import Facts
from workbench.model.findings import Level


def report_other_hardware(facts: Facts) -> Iterator[Advice]:
    """Report that the preset is for other GPUs than those of this server, so that its reference
    results and the claims that it quotes do not apply."""
    names = {g.name for g in facts.gpus if g.name}
    if not names or not facts.preset_gpus or names <= set(facts.preset_gpus):
        return
    measured = " and ".join(sorted(names - set(facts.preset_gpus)))
    text = (
        f"preset {facts.preset_id} is for {' or '.join(facts.preset_gpus)}, and this ran on "
        f"{measured}: its"
    )
    text += " reference results and claims are about other hardware"
    chips = sorted(
        {f"{g.name}: {g.type.chip}, {g.type.bandwidth_gbs:g} GB/s" for g in facts.gpus if g.type}
    )
    yield make_advice(Level.INFO, "hw.identity", text, evidence="; ".join(chips) or measured)


def report_partial_energy_scope(facts: Facts) -> Iterator[Advice]:
    """Report that the tokens per joule do not include the power of all GPUs."""
    summary = facts.summary
    if summary is None or summary.tok_per_joule is None:
        return
    unread = [g for g in facts.gpus if g.power_w is None]
    lacks, ranks = [], facts.tp * facts.pp * facts.dp
    if facts.node_count > 1 and ranks > len(facts.gpus):
        lacks.append(f"{len(facts.gpus)} of {ranks} GPUs were read, those of this host")
    elif unread and len(unread) < len(facts.gpus):
        lacks.append(f"the power of {len(unread)} of {len(facts.gpus)} GPUs was not read")
    if facts.imported:
        lacks.append(f"{facts.imported} defines its own scope")
    if lacks:
        text = (
            f"tokens per joule cover only a part: {'; '.join(lacks)}. Compare only results of "
            "the same scope"
        )
        fix = "readings under load count, never the power on a nameplate"
        yield make_advice(
            Level.INFO, "energy.scope", text, fix=fix, evidence=f"{summary.tok_per_joule:.3g} tok/J"
        )


def report_several_replicas(facts: Facts) -> Iterator[Advice]:
    """Report that the server has several data-parallel replicas, and that a line of its log
    describes only one of them."""
    if facts.dp > 1:
        text = (
            f"{facts.dp} replicas: a line of the log (Engine 000) shows one of them; the "
            "counters here are their sum"
        )
        yield make_advice(
            Level.INFO, "dp.sum-engines", text, evidence=f"data-parallel-size {facts.dp}"
        )


def report_missing_rule_inputs(facts: Facts) -> Iterator[Advice]:
    """Report which values are missing, so that some rules could not be applied."""
    lacks = []
    run = facts.find_measured_run()
    if run is not None:
        if facts.ceiling_tok_s is None:
            why = "bytes per token or GPU unknown"
            if facts.known_sizes.missing:
                why = facts.known_sizes.missing
            if facts.ceiling_missing:
                why = facts.ceiling_missing
            lacks.append(f"the limit by memory bandwidth ({why})")
        elif facts.per_stream_tok_s is None:
            lacks.append("the speed of one stream")
        if run.summary.gpu is None:
            lacks.append(
                f"readings of the GPUs ({run.summary.absent.get('power_w', 'not in the result')})"
            )
        if run.summary.engine is None:
            lacks.append("the engine's own counters")
    next_step = ""
    if facts.plan_context is None:
        lacks.append("the server's flags")
        next_step = "measure a server that Workbench started from a preset"
    if lacks:
        text = f"no advice from facts that are missing: {', '.join(lacks)}"
        yield make_advice(Level.INFO, "facts.missing", text, fix=next_step)


RULES: tuple[Rule, ...] = (
    report_other_hardware,
    report_partial_energy_scope,
    report_several_replicas,
    report_missing_rule_inputs,
)
