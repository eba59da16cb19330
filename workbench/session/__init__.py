"""The application without a screen. Front ends (the screen and the commands) call the parts of
`session.Session` and draw the state of that session.

session, state, state_holder    the session, its state as one frozen value, and the holder that replaces the state
plans/                          the plan under edit, and the presets that it comes from
servers/                        the servers of the host
gpu/                            GPU settings
history/                        the readings of the GPUs, and their history
bench/                          benchmarks and other loads
series/                         experiments and sweeps
quality/                        whether the answers of two servers are the same
alerts/                         what the user asked to be told, and how
results/                        stored results, reports and advice
hosts/                          the link to the host, and other hosts
fleet/                          several hosts on one screen
conditions                      the conditions under which a result was measured
last_screen                     what the last screen stored: marks, values of forms, results
changes_while_away              what happened on the host since the last screen closed
replay                          a session that reads a recording in place of a host
uninterrupted                   work that must be completed even if its task is cancelled
"""
