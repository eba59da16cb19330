"""Live readings of GPUs: an agent on the host reads NVML, and a source on this machine keeps what it sends."""
