"""`optimize`: what is tried on a model, for which target and objectives, and the recipes that search and prove."""
