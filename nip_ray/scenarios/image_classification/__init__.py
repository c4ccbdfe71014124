"""To which of two groups of classes does an image belong? A message points at a part of it. Images, labels, feature
maps of pretrained models, and the networks that play."""
