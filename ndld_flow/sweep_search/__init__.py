"""Search methods of sweeps: which points to try, and which are best."""
