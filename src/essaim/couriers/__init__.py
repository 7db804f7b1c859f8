"""Couriers bring due runs to an engine.  Lost or doubled messages are harmless."""
