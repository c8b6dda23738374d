"""Judges the box before anything costs GPU time."""
