"""Search methods of sweeps, and the ranking of points."""
