"""Data planes: each driver is five idempotent verbs over one way of getting machines."""
