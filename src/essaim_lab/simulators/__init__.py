"""Stand-ins for what cannot run on one computer: real servers with real shapes, and faults."""
