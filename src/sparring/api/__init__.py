"""`sparring.train`, `sweep`, `evaluate`, `load` and `make`. The package's __init__ opens them lazily."""
