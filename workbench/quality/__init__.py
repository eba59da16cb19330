"""Quality: whether two servers give the same answers, by the log probabilities of texts.

`texts` has the texts of the package and reads those of the user. `instrument` scores them on one
server and lets it write answers, through the interface of its engine in `lanes`. `statistics` has
the differences of scored texts with their intervals and tests, and `verdict` what follows from
them. `token_texts` shows single tokens to the user, and `own_measure` reads the scores of the
user's own measure.

This room does no input and output over the network: the caller gives it a function that sends a
request, so the same code measures any server, and the simulated engines use the same texts.
"""
