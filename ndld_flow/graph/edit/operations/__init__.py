"""Operations, one per file; the file's name is the operation's name in recipes."""
