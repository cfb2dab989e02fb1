"""The history of metrics: series of comparable measurements, their steps and trends, and what differed at each step."""
