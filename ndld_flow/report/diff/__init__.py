"""What is different between two models, as pages and texts show it."""
