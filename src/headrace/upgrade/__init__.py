"""What becomes of the state of a job whose program has changed: decided before anything starts."""
