"""Speaks the target model's tongue: template, tokens, parsing of answers."""
