"""Pages, forms and questions over the main screen.

base, page, form                the common parts: the box, a page with keys, a form with fields
ask, login                      questions: before something that cannot be undone, and for an SSH login
flag_edit                       the editor of one flag or environment variable
launch                          the page before a start
bench_form, experiment_form     forms of a benchmark and of an A/B experiment
sweep_form, gpu_settings        forms of a sweep and of GPU settings
gpu_confirm                     the pages before and after a change of GPU settings
live                            pages that follow an experiment or a sweep
result, plot, info              pages of a result, of plots, of keys, a preset and the activity log
"""
