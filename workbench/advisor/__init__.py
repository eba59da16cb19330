"""Advice about measured servers: rules that turn facts about a result or a running server into findings.

All functions are pure. `facts.py` has the facts and reads them from a stored result. `advice.py` has the form of an
advice and its gain. The rules are in four files: `speed_rules.py` (the limit by memory bandwidth, parallel sizes,
launches), `gpu_rules.py` (power, clocks, temperature), `load_rules.py` (queue, KV cache, prefix cache, client) and
`scope_rules.py` (what a number covers). `advisor.py` applies the rules and orders the findings by gain.
`verdicts.py` says what an experiment measured for a finding.

    from workbench.advisor.advisor import advise
    from workbench.advisor.facts import facts_of_result

    findings = advise(facts_of_result(result))
"""
