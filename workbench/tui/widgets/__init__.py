"""The rows of the main screen, and the parts that panes and pages draw.

status_bar, bars                the first row; tabs, command, message and keys
progress                        the rows about running measurements, starts and copies
gpu_strip, gpu_metrics          the telemetry strip, and the metrics of a GPU with their scales
engine_rows                     the metrics of the engine, below the GPUs of the telemetry strip
unlike_gpus                     equal GPUs that work differently
running_rows                    the command and the flags of the running server
graph, time_axis, strip_layout  one graph; the axis with its marks and cursor; the positions of the graphs
graph_cache                     cells of the past that are not drawn again
axis_labels                     what happened, above the time axis
pick_list, entry, scrolled      a list with a cursor, an input of one line, a text that scrolls
comparison, experiment, sweep   a comparison, an experiment and a sweep as rows
result_timeline                 graphs of the seconds around a benchmark
guard_state                     the state of the guard as rows
interval, plot                  intervals on one axis; plots by plotext
"""
