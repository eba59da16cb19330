"""Alerts: what the user asked to be told, and how. The modules of this folder:

alerts      the rules that are on, their state, and the alerts that they raised
events      alerts about servers, benchmarks and series, from changes of the state
webhook     sends alerts to an address on the web
"""
