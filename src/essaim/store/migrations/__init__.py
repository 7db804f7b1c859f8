"""Alembic's scripts.  A test compares what they make with `store.schema`, on all databases."""

#: The newest revision, so that a database that has it is recognised without importing Alembic.
HEAD = "0006"
