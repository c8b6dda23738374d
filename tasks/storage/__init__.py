"""Keeps everything: create-only objects, the part format, manifests."""
