"""Attacks: what must not break, broken on purpose.

`pytest tests/reliability -m "slow or not slow"` makes all of them.
"""
