"""Turns chunks of prompts into parts of outcomes, over all endpoints."""
