"""The page of what a model computes inside: channel maps, ranges, histograms, two models side by side."""
