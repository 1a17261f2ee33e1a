"""Several processes of a run: what they agree on, and what they do when one is lost."""
