"""Turns outcomes into training samples, merged with the base dataset."""
