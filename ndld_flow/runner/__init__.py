"""Plan a recipe against the store, and run the steps whose results are not stored."""
