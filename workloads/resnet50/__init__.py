"""ResNet-50 image classification: the recipe of Goyal et al. 2017."""
