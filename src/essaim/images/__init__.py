"""Images: root file systems built from a description, kept by digest, each with a manifest."""
