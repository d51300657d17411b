"""The Transformer: attention, embeddings, the layers they make, and the same one position at a time."""
