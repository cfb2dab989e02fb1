"""Graph edits: operations as a recipe writes them, and their work on a model in memory."""
