"""Changes that people make to the state of a job: what they say, what it comes to, and how it becomes an epoch."""
