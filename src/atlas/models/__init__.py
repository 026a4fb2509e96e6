"""Asking models: the two wire protocols, a scripted model, prices, and the router over all providers."""
