"""From a file to an ExpansionConfig that can be used, or to one line that says why not."""
