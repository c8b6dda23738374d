"""Invented sample rows in the shapes of the six sources."""
