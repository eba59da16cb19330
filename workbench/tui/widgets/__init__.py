"""The rows of the main screen, and the parts that panes and pages draw.

status_bar, bars                the first row; tabs, command, message and keys
progress                        the rows about work that takes long
gpu_strip, gpu_metrics          the telemetry strip, and the metrics of a GPU with their scales
graph, time_axis, strip_layout  one graph; the axis with its marks and cursor; where the graphs stand
pick_list, entry, scrolled      a list with a cursor, an input of one line, a text that scrolls
comparison, experiment, sweep   a comparison, an experiment and a sweep as rows
guard_state                     the state of the guard as rows
interval, plot                  intervals on one axis; plots by plotext
"""
