"""A real, unmodified sglang on a CPU: its environment, and a tiny model with random weights."""
