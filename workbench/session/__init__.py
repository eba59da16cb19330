"""The application without a screen. `session.Session` holds the state (state.py) and the parts that front ends use."""
