"""What the store says of a model that never played those games: off-policy evaluation. Page: docs/offline.md"""
