"""The guard: a process on the GPU host that reverts GPU settings when heartbeats stop, when a trial
ends without confirmation, or when a GPU reaches its thermal limit.

client               Workbench's side: starts the guard, changes its instructions, and reads its state
start                the start of the guard as a detached process on the host
guard                the main loop of the guard
interruptible_sleep  the pause between two rounds, which a change of the journal ends
due_reverts          which value each revert restores, why, and how the journal records the revert
temperatures         temperatures and thermal limits
files                the files that the guard reads and writes, beside the journal
privileges           the programs that the guard runs, and its rights
"""
