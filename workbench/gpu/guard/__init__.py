"""The guard: a process on the GPU host that reverts settings without a heartbeat, at the end of a trial, or at the
thermal limit.

client         Workbench's side: start, instructions and state of the guard
start          how the guard detaches on its host
guard          the guard itself
due_reverts    the reverts that are due, and their reasons
temperatures   temperatures and thermal limits
files          the files that the guard reads and writes
privileges     the programs that the guard runs, and its rights
"""
