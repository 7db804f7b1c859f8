"""Runs the scripts on the connection it is given; `store.migrate` holds the lock around it."""

from alembic import context

from essaim.store.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
