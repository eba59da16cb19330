"""The screen of a fleet: several hosts, one block of rows for each.

app       the application
screen    the screen: its keys, the filter and the order of the hosts
columns   the columns of the table, with the order by each
table     the rows of the hosts
bars      the totals, the text about the host under the cursor, and the keys
"""
