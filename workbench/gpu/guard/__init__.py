"""The guard: a process on the GPU host that reverts settings when their owner is silent, late or too hot."""
