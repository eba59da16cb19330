"""The readings of the GPUs, and their history. The modules of this folder:

telemetry_watch                 the newest reading of each GPU
timeline, timeline_events       the history of the readings of GPUs and engine, and the events that explain them
kept_history                    the history on disk, read when a screen opens and written once a second
recorder                        recordings of a host that `workbench replay` shows
"""
