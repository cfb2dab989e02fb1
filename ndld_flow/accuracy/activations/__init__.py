"""What a model computes inside on given inputs, made into a document to look at."""
