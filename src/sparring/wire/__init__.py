"""How bytes look: chunks, messages, manifests. No I/O, nothing executed, nothing trusted."""
