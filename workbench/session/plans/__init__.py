"""The plan under edit, and the library of presets that it comes from. The modules of this folder:

plans, plan_editor              the plan: everything that a start of a server needs, with its undo history
presets, preset_variables       the library of presets, and the values of a preset's variables
preset_apply                    all of a preset at once: server, GPU and CPU settings, warm-up
preset_process_parts            the parts of a preset that are processes of the server
recipes                         launches in the forms of other tools: import and export
engine_flags                    the flags of the installed engine
model_fit, free_memory          which quantizations and context lengths fit into the memory that is free
estimate_text                   the memory estimate in words
"""
