"""Other machines join a training run over an encrypted WebSocket: docs/nodes.md."""
