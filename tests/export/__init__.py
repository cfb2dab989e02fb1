"""Tests of exported projects."""
