"""Makes endpoints: launches, watches and probes the inference servers."""
