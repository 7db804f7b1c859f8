"""Alembic's scripts.  A test compares what they make with `store.schema`, on all databases."""

#: The newest revision, so that a database that has it is recognised without importing Alembic.
HEAD = "0016"

#: The oldest schema whose processes may run, and start, beside those of HEAD: nothing they use has
#: changed since.  It is kept in the database, where they read it.  Who takes something away raises
#: it to the first schema that did without; a test holds the scripts to it.
OLDEST = "0003"
