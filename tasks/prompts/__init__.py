"""Turns source rows into prompts, and prompts into chunks."""
