"""Corpora, their subwords, and batches of them; numpy alone, no torch."""
