"""Stored results. The modules of this folder:

results, reports                the stored results, and reports on them
series_rows                     which results belong to an experiment or a sweep
proofs                          shareable proofs: made, and checked by computing their figures again
advice                          what limits a result, and which change would help
timelines                       the readings of GPUs and engine around each benchmark
"""
