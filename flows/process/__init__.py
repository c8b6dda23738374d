"""How a process of ours begins, speaks to people, and ends."""
