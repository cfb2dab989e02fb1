"""`optimize`: the fastest variant of a model that is still right."""
