"""The audit trail's table, and what is done with it."""
