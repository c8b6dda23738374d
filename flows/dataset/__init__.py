"""A run or a dataset that is there already: found, judged, exported."""
