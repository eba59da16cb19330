"""Advice about measured servers: rules that read measured and configured values and yield findings.

All functions are pure. `facts.py` defines `Facts`, the input of all rules, and makes it from a
stored result. `advice.py` defines an advice and its expected gain. The rules are in four files:
`speed_rules.py` (the limit by memory bandwidth, parallel sizes, kernel launches), `gpu_rules.py`
(power, clocks, temperature), `load_rules.py` (queue, KV cache, prefix cache, client) and
`scope_rules.py` (what a measured value includes). `advisor.py` applies the rules and sorts the
findings by gain. `verdicts.py` says what experiments measured for a finding, and `known_answers.py`
which changes are known to make the answers worse. `candidates.py` has the changes that a tune
tries. `alert_rules.py` has what the rules of alerts measure, and `alert_watch.py` when alerts begin
and end.

    from workbench.advisor.advisor import list_advice_findings
    from workbench.advisor.facts import facts_from_result

    findings = list_advice_findings(facts_from_result(result))
"""
