"""Any other format that Spark reads or writes."""
