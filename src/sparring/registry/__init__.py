"""Models by content: one protocol, one file per backend, chosen by URL."""
