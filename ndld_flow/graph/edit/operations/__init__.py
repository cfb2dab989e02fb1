"""Operations, in the file of their heading; `RenameNodes` is `rename_nodes` in recipes."""
