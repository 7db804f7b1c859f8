"""Sagas: one file each, its table of steps beside the functions that carry them out."""
