"""Settings of GPUs and of their host's CPU cores: plan, apply, verify and revert them.
model/settings.py lists all settings, and model/setting_commands.py has their commands.

plan                            makes commands from requested settings
apply, revert                   change and revert settings: write the journal, run commands, read the values back
command_runner, outcomes        run the commands, and decide from the values read back whether they worked
standstill                      whether this process stood still during a change, so that the guard has reverted it
current_values                  the values that the host's settings have now
journal, owners                 the previous values on disk, and the process that made a change
journal_client, journal_program the program on the host that reads, locks and writes the journal, and its client
journal_file                    the journal's file, its lock and its entries in the register, on the host
scripts                         shell code, with journal_without_python3.sh: the same on a host without python3
unconfirmed_changes             what became of changes whose result was never written down
alterations                     the settings that Workbench changed, compared with the present values
register, register_client       the settings that other users changed, published on the host; what a host says of them
claims                          how changes by other users affect a change or a revert by this Workbench
rights, root_owned, sudoers     who may change settings, which programs root may run safely, and a sudoers file
proof, proof_files              proof, from readings under load, that a setting has an effect; stored proofs
clock_contrasts                 clocks under one load with different locks, which prove that a lock has an effect
disturbance                     settings and programs of other users that changed during a benchmark
preset_settings                 the GPU settings of a preset, compared with the present values
setting_traps                   known cases in which a setting does something unexpected, with sources
"""
