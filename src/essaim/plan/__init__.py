"""Pure decisions: what differs, in which order, how long.  No input or output, no clock."""
