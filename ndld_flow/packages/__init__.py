"""Model packages: write them, read them safely, and find the variant for a machine."""
