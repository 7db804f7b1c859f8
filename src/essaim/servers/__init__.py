"""What a school's servers are told: names, addresses, desktops, and who its people are.

Each module talks to one kind of server and loads that server's library; `making` makes one from
the settings of a site and loads only what is asked for.
"""
