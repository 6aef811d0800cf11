"""Kernels of the device, each with the torch code that is its meaning beside it."""
