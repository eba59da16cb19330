"""The screen of a fleet: several hosts, one block of rows for each.

app       the application
screen    the screen: its keys, the filter and the order of the hosts
columns   the columns of the table, and the hosts sorted by a column
table     the rows of the hosts
over_main the screen of the fleet, opened over the main screen of a host
bars      the totals, the text about the host under the cursor, and the keys
"""
