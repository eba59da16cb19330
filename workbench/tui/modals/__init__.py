"""Forms and questions, in a box over the main screen. Texts to read are pages (pages/).

base, form                      the common parts: the box, a form with fields
ask, login                      the question before an action that cannot be undone; the question of an SSH login
flag_edit                       the editor of one flag or environment variable
launch                          the page before the start of a server
bench_form, experiment_form     forms of a benchmark and of an A/B experiment
how_sure                        the question how precise a quick A/B experiment has to be
sweep_form, gpu_settings        forms of a sweep and of GPU settings
tune_form                       the form of a tune
declared_fields                 fields of forms, made from the declarations of options
gpu_confirm                     the question before a change of GPU settings, and the rows of the report after it
"""
