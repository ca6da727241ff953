"""Experience, kept: one protocol, one file per backend, chosen by URL."""
