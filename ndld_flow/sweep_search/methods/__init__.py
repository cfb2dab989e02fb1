"""Search methods of sweeps, one in a file."""
