"""What is computed for a picture: score functions, attention kernels, networks."""
