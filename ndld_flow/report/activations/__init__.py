"""The page of captured activations: channel maps, ranges, histograms, two models side by side."""
