"""Every step and verb on one model: the models, what is tried, and how a result is judged."""
