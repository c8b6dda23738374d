"""The commands of `draftmill`, which no flow imports."""
