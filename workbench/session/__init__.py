"""The application without a screen: state in session/state.py, commands in session/api.py, the rest builds them."""
