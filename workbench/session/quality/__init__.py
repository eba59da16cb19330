"""Quality: whether the answers of two servers are the same, measured on real hosts.

comparison.py  starts the servers one after the other, measures both, and stores the result
experiment_answers.py  the same beside the runs of an experiment, on the servers that it starts anyway
restart_answers.py  the same for a server that is restarted with a changed plan
sides.py  the two servers of a comparison
lineage.py  what a run or a preset was changed from
measuring.py  what is measured of each server, in steps, and the verdict about it
scored_server.py  one server: which engine it is, its requests, and whether it serves others
own_scores.py  the user's own measure of one server
"""
