"""The built-in steps, one file each. The file name is the word in the recipe."""
