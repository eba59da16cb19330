"""The guard: a process on the GPU host that reverts settings when their owner is silent, late or too hot.

client         Workbench's side: start, orders and state of the guard
start          how the guard detaches on its host
guard          the guard itself
due_reverts    which reverts are due, and why
temperatures   temperatures and thermal limits
files          the files that the guard reads and writes
privileges     the programs that the guard runs, and its rights
"""
