"""Work that is done in a process of its own: it may crash, fill the memory or be killed without harming the rest."""
