"""Several hosts on one screen. The modules of this folder:

fleet                           the hosts, and the state of all of them each second
member, state                   the reader of one host, and the state
"""
