"""Configuration: compose, inherit, check and explain what a user wrote.

Importing this package costs nothing; Hydra and pydantic are imported by the modules that use them.
"""
