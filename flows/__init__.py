"""The flows: the story of a run, and the command line that tells it."""
