"""The words of Essaim as plain values: standard library only, no input or output."""
