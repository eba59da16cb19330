"""GPU settings of the host. The modules of this folder:

control                         plan, apply, revert
rights, guard, alterations      who may set what, the heartbeat of the guard, and which settings are altered
proof, evidence, clock_probe    proofs, from loads, of which settings work; a short try of another clock lock
previous_settings               the value of a GPU setting before a probe or a sweep, and its restoration
setting_texts                   texts about altered settings and failed changes
"""
