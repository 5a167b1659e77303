"""Going back to an earlier epoch: asked for, decided, proved possible, and carried out."""
