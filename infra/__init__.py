"""What runs beside the pipeline: the simulated server and deployment material."""
