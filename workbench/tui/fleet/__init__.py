"""The screen of a fleet: several hosts, one block of rows for each.

app       the application
screen    the screen: its keys, the filter and the order of the hosts
columns   the columns of the table, with the order by each
table     the rows of the hosts
over_main the screen over the main screen of a host
bars      the totals, the text about the host under the cursor, and the keys
"""
