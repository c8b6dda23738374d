"""What the flows are made of: each stage of a run, and what they hold open."""
