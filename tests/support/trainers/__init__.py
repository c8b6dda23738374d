"""The trainers' own packages, in an environment of theirs."""
