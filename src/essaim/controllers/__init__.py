"""Loops that keep the fleet as it should be.  Any number of processes may run them at once.

Each looks at everything, decides with a pure function that takes *now*, acts through changes that
only one can make, and says when to look again.
"""
