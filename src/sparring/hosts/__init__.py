"""Where services live: this machine's processes, or a Ray cluster."""
