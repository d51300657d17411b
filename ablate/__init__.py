"""Run and judge ablations of the Transformer: the rows of Table 3 of "Attention Is All You Need", and your own."""

__version__ = "0.2.0"
