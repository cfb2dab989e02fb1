"""How far two models' outputs agree."""
