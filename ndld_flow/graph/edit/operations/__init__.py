"""Operations, one in each file, which has the name of the operation in recipes."""
