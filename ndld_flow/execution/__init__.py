"""Run one step: its key, its device, and the process or machine that computes it."""
