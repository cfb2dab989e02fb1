"""Plan a recipe against the store, then do what is not done yet."""
