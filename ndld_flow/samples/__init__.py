"""Samples: the values of a model's inputs."""
