"""Pages: texts to read, which cover the panes. The status bar, the GPU strip and the messages stay
visible.

base, frame         the base class with its keys, and the frame that holds the open pages
live                pages that follow an experiment or a sweep
result, plot        pages of a result, and of plots
texts               rows of the help, a preset and the activity log
changes_while_away  what happened since the last screen closed
advice, doctor      rows of the advice on a result, and of the examination of a host
models              the page with the models on hosts
differs             what differs between two results
quality             the answers of A and B
alerts              rules of alerts, and the last alerts
"""
