"""The files that Workbench stores on the user's machine.

paths.py                  the directories (XDG)
text_files.py             atomic writing of small text files
request_file.py           the requests of a result as a small file
results_db.py             benchmark results: the columns of their table, queries, requests in files beside the database
result_index.py           the table by which lists filter results
database.py               the SQLite file: transactions, format versions, error messages
experiments.py            A/B experiments, in the same database
quality_db.py             comparisons of answers, in the same database
sweeps.py                 sweeps, one JSON file each
bisections.py             bisections, one JSON file each
numbered_files.py         directories of records with a number as file name
unfinished_benchmarks.py  notes about running benchmarks, for what a killed process has measured
watches.py                the watches and their nights
series_lock.py            locks of experiments and sweeps: one Workbench at a time runs each
presets.py                the preset library: list, check, load and save
preset_file.py            reading a preset file within limits
preset_check.py           findings about a preset's schema and variables
preset_safety.py          findings about dangerous content of a preset
preset_edit.py            writing presets
preset_text.py            a preset as text, for the command line and the screen
toml_edit.py              changing a TOML file without losing comments
toml_lines.py             line numbers of TOML fields, for findings
recording.py              the format of recordings: readings by the second, and events
history_files.py          readings and events of each host from the last hours
result_timelines.py       readings and events from around the time of each benchmark
trusted_presets.py        the preset programs and settings that the user has agreed to run
preset_list_cache.py      a cache of the list of presets, for libraries of many files
preset_documents.py       the source documents of the shipped presets
config.py                 config.toml; config_schema.py is its schema
hosts_file.py             hosts.toml: hosts and clusters; hosts_schema.py is its schema
flag_cache.py             flags that the engines of hosts have printed
glossary.py               the terms that the screen explains
toml_schema.py            checks of the tables of a TOML document
screen_state.py           marks and form contents, which the screen restores at its next start
activity_log.py           the actions of Workbench on hosts
crash_files.py            tracebacks of unexpected exceptions
"""
