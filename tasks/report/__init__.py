"""Shows people what a run did."""
