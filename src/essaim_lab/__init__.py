"""What is used to measure and try out Essaim.  May import `essaim`, never the reverse."""
