"""GPU and host settings: plan, apply, prove, journal and revert."""
