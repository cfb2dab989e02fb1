"""What a profile says about the model: what it is bound by, and what to try next."""
