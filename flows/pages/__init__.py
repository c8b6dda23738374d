"""What people see of a run: live views, Prefect's artifacts and notices, the report."""
