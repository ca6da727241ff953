"""Which model is champion: the signed log, the rules on it, the promotion gate."""
