"""Tools that make a model faster, compared: the models, the environments, the neutral judge, and the table."""
