"""Which model is champion: the signed champion log, promotion, rollback and re-signing, the promotion gate."""
