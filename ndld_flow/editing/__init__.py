"""Graph edits as a recipe writes them: operations and what they select. The work on models is in `backends.editing`."""
