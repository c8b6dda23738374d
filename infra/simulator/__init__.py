"""A stand-in for an SGLang server, for machines without a GPU."""
