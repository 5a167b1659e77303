"""Windows: which rows belong together in time, when results are given out, and what is kept until then."""
