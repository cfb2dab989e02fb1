"""Compare profiles: match layers and judge differences."""
