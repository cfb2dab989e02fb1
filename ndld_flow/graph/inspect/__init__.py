"""Look things up in a model. Weights are read only where their numbers are asked for, and then in pieces."""
