"""One operation, one file: the file's name is the word in the recipe."""
