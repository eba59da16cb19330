"""Quality: whether the answers of two servers are the same, measured on real hosts.

comparison.py  starts the servers one after the other, measures both, and stores the result
scored_server.py  one server: which engine it is, its requests, and whether it serves others
"""
