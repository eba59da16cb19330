"""GPU and host settings: plan, apply, prove, journal and revert. model/settings.py has the table of settings,
model/setting_commands.py their commands.

plan                            from requested settings to commands
apply, revert                   changes and reverts of settings, with journal, commands and a reading of the result
command_runner, outcomes        runs of the commands, and the judgement of their outcome
current_values                  the values that the host's settings have now
journal, owners                 the previous values on disk, and the process that made a change
alterations                     the settings that Workbench changed, compared with the present values
register, register_client       the settings that other users changed, published on the host
claims                          what other users' changes mean for a change or a revert
rights, root_owned, sudoers     who may change settings, programs that root may run, and a file that allows it
proof, proof_files              proof that a setting is in force, from readings under load
clock_contrasts                 clocks under one load with different locks, which prove a lock
disturbance                     changes by others during a benchmark
preset_settings                 the settings of a preset
setting_traps                   known traps of settings, with sources
"""
