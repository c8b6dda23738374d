"""Profiles and deployment definitions."""
