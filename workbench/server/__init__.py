"""Servers: find the installed engine, start, watch until ready, follow the log, count, stop, adopt.

Nothing is imported here: `from workbench.server.supervisor import Supervisor` brings what it needs.
"""
