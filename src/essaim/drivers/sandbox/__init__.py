"""Machines made of Linux namespaces over a prebuilt root file system, as root or as a plain user.

`driver.Sandbox` is what the rest of Essaim talks to.  Each stack has one *keeper*, a small process
in namespaces of its own that holds the stack's network and is the parent of its machines: when it
ends, nothing of them can be left.  Everything the keeper imports is standard library and light.

As root a machine's root is the computer's root: it keeps accidents apart, not enemies.  As a plain
user the machines can do no more than that user could.
"""
